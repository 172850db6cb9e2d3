// An operator's rungs in order, as its binding chooses between them.
//
// The order lives in the Python spec, which hands it over when the library is loaded.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/registry.h"

namespace warpsmith {

// The rung that this thread launched last; tests compare it with what `which` promised.
inline thread_local std::string_view last_rung = "";

// Every ladder of the library by its source folder, so that the spec can set its order.
inline std::map<std::string, std::function<void(const std::vector<std::string>&)>, std::less<>>& ladders() {
  static std::map<std::string, std::function<void(const std::vector<std::string>&)>, std::less<>> setters;
  return setters;
}

// A rung, and the operators of whose calls no GPU has verified it: these take it by name alone.
template <class Args>
struct Placed {
  Rung<Args> rung;
  std::vector<std::string> unproven;
};

// The rungs that have entered themselves; in the ladder's order once the spec has told it.
template <class Args>
std::vector<Placed<Args>>& rungs() {
  static std::vector<Placed<Args>> list = [] {
    std::vector<Placed<Args>> entered;
    for (const Rung<Args>* rung = last_entered<Args>(); rung != nullptr; rung = rung->before)
      entered.push_back({*rung, {}});
    return entered;
  }();
  return list;
}

// One per operator, in its binding file.
template <class Args>
struct Ladder {
  explicit Ladder(const std::string& source) {
    ladders()[source] = [source](const std::vector<std::string>& order) { set_order(source, order); };
  }

  // Behind the name of a rung stand, each after a question mark, the operators for which no GPU has verified it.
  static void set_order(const std::string& source, const std::vector<std::string>& order) {
    std::vector<Placed<Args>> sorted;
    for (const std::string& text : order) {
      size_t end = text.find('?');
      const std::string name = text.substr(0, end);
      const Rung<Args>* rung = find(name);
      if (rung == nullptr) throw std::runtime_error(source + ": the library has no rung '" + name + "'");
      sorted.push_back({*rung, {}});
      while (end != std::string::npos) {
        const size_t start = end + 1;
        end = text.find('?', start);
        sorted.back().unproven.push_back(text.substr(start, end - start));
      }
    }
    if (sorted.size() != rungs<Args>().size()) {
      throw std::runtime_error(source + ": the library has a rung that the spec does not list");
    }
    rungs<Args>() = std::move(sorted);
  }

  static const Rung<Args>* find(std::string_view name) {
    for (const Placed<Args>& placed : rungs<Args>()) {
      if (placed.rung.name == name) return &placed.rung;
    }
    return nullptr;
  }

  // The last rung that is verified for `op`, can take the call, suits it and fits the current device; nullptr where none
  // does.
  static const Rung<Args>* choose(std::string_view op, const Args& args, int sm) {
    auto& list = rungs<Args>();
    for (auto placed = list.rbegin(); placed != list.rend(); ++placed) {
      const Rung<Args>& rung = placed->rung;
      if (sm < rung.min_sm || rung.takes(args) != nullptr || !rung.suits(args)) continue;
      const auto is_op = [op](const std::string& other) { return other == op; };
      if (std::any_of(placed->unproven.begin(), placed->unproven.end(), is_op)) continue;
      if (rung.unheld_cluster(args) == 0) return &rung;
    }
    return nullptr;
  }

  static void run(const Rung<Args>& rung, const Args& args, cudaStream_t stream) {
    rung.launch(args, stream);
    last_rung = rung.name;
  }

  // The rung called `name`, or an explanation on behalf of `op` why it cannot run.
  static const Rung<Args>& named(std::string_view op, std::string_view name, const Args& args, int sm) {
    const std::string prefix = std::string(op) + ": rung '" + std::string(name) + "' ";
    const Rung<Args>* rung = find(name);
    if (rung == nullptr) throw std::runtime_error(prefix + "does not exist");
    if (sm < rung->min_sm) {
      throw std::runtime_error(prefix + "needs sm_" + std::to_string(rung->min_sm) + ", this GPU is sm_" +
                               std::to_string(sm));
    }
    if (const char* reason = rung->takes(args)) throw std::runtime_error(prefix + reason);
    if (const int blocks = rung->unheld_cluster(args)) {
      const std::string needed =
          blocks == 1 ? "a block of more shared memory" : "clusters of " + std::to_string(blocks) + " blocks";
      throw std::runtime_error(prefix + "needs " + needed + ", which this GPU (or this part of one) does not hold");
    }
    return *rung;
  }
};

}  // namespace warpsmith
