// An operator's rungs in order, as its binding chooses between them.
//
// The order lives in the Python spec, which hands it over when the library is loaded.
#pragma once

#include <cuda_runtime.h>

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

// The rungs that have entered themselves; in the ladder's order once the spec has told it.
template <class Args>
std::vector<Rung<Args>>& rungs() {
  static std::vector<Rung<Args>> list = [] {
    std::vector<Rung<Args>> entered;
    for (const Rung<Args>* rung = last_entered<Args>(); rung != nullptr; rung = rung->before) entered.push_back(*rung);
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

  // A name with a question mark behind it is that of a rung which no GPU has verified.
  static void set_order(const std::string& source, const std::vector<std::string>& order) {
    std::vector<Rung<Args>> sorted;
    for (std::string name : order) {
      const bool unproven = name.ends_with('?');
      if (unproven) name.pop_back();
      const Rung<Args>* rung = find(name);
      if (rung == nullptr) throw std::runtime_error(source + ": the library has no rung '" + name + "'");
      sorted.push_back(*rung);
      sorted.back().unproven = unproven;
    }
    if (sorted.size() != rungs<Args>().size()) {
      throw std::runtime_error(source + ": the library has a rung that the spec does not list");
    }
    rungs<Args>() = std::move(sorted);
  }

  static const Rung<Args>* find(std::string_view name) {
    for (const Rung<Args>& rung : rungs<Args>()) {
      if (rung.name == name) return &rung;
    }
    return nullptr;
  }

  // The last rung that can take the call, suits it and fits the current device; nullptr where none does.
  static const Rung<Args>* choose(const Args& args, int sm) {
    auto& list = rungs<Args>();
    for (auto rung = list.rbegin(); rung != list.rend(); ++rung) {
      if (rung->unproven || sm < rung->min_sm || rung->takes(args) != nullptr || !rung->suits(args)) continue;
      if (rung->unheld_cluster(args) == 0) return &*rung;
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
