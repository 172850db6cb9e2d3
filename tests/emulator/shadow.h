// Shared memory as the async proxy sees it: the copy engine, and whatever reads operands from shared memory by itself. It
// has accesses of its own, which only fence.proxy.async puts in an order with those of threads; the other way round the
// completion of a copy is such a fence (PTX ISA, "Memory Consistency Model: Proxies").
//
// Here the two have separate bytes. What threads write reaches the engine's bytes with a fence, so that without one it
// reads NaN or what was there before, and what it writes may be overwritten by what they had written before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace emu {

// Of one block of a cluster. Other blocks copy into it too: whoever calls holds `mutex`.
class Shadow {
 public:
  std::mutex mutex;

  // A block begins, with dynamic shared memory of NaN.
  void begin(char* dynamic, size_t bytes) {
    if (pieces_.empty()) pieces_.emplace_back();
    pieces_[0] = {dynamic, std::vector<char>(bytes, '\xff')};
    for (size_t i = 1; i < pieces_.size(); ++i) pieces_[i].follow();
    landed_.clear();
    hidden_barriers_.clear();
    fenced_ = false;
  }

  void fence(const void* thread) {
    for (Piece& piece : pieces_) piece.follow();
    for (Landed& copy : landed_) copy.readers.erase(thread);
    hidden_barriers_.clear();
    fenced_ = true;
  }

  void hide_barrier(const void* barrier) { hidden_barriers_.insert(barrier); }
  void show_barriers() { hidden_barriers_.clear(); }

  // A copy is on its way.
  struct Copy {
    char* to;
    size_t bytes;
    const void* barrier;
    std::vector<std::pair<size_t, char>> unfenced;  // what threads wrote, and may still arrive after it
  };

  // Throws away what is there: the copy may land at any time from now on. Returns what is wrong with that, or "".
  std::string start(Copy& copy) {
    if (hidden_barriers_.contains(copy.barrier)) return "a copy counts on an mbarrier that no fence has shown to it";
    char* const async = view(copy.to, copy.bytes);
    for (const Landed& before : landed_) {
      if (overlaps(before, copy) && !before.readers.empty()) {
        return "a copy over shared memory that a thread waited for and did not fence since";
      }
    }
    std::erase_if(landed_, [&](const Landed& before) { return overlaps(before, copy); });
    for (size_t i = 0; i < copy.bytes; ++i) {
      if (copy.to[i] != async[i]) copy.unfenced.emplace_back(i, copy.to[i]);
    }
    std::memset(copy.to, 0xff, copy.bytes);
    std::memset(async, 0xff, copy.bytes);
    return "";
  }

  template <class Write>
  void land(const Copy& copy, const Write& write) {
    char* const async = view(copy.to, copy.bytes);
    write(async);
    std::memcpy(copy.to, async, copy.bytes);
    for (const auto& [i, byte] : copy.unfenced) copy.to[i] = byte;
    landed_.push_back({copy.to, copy.bytes, copy.barrier, {}});
  }

  // A thread knows that the copies counted on a barrier have landed, and reads them from now on.
  void observe(const void* barrier, const void* thread) {
    for (Landed& copy : landed_) {
      if (copy.barrier == barrier) copy.readers.insert(thread);
    }
  }

  // What the engine sees of `bytes` bytes from `at` on.
  char* view(char* at, size_t bytes) {
    for (Piece& piece : pieces_) {
      if (at >= piece.threads && at + bytes <= piece.threads + piece.async.size()) {
        return piece.async.data() + (at - piece.threads);
      }
    }
    Piece piece{at, std::vector<char>(bytes, '\xff')};  // static memory: followed from its first use on
    if (fenced_) piece.follow();
    return pieces_.emplace_back(std::move(piece)).async.data();
  }

 private:
  struct Piece {
    char* threads = nullptr;
    std::vector<char> async;
    void follow() { std::memcpy(async.data(), threads, async.size()); }
  };

  struct Landed {
    char* to;
    size_t bytes;
    const void* barrier;
    std::set<const void*> readers;  // that have not fenced since
  };

  static bool overlaps(const Landed& a, const Copy& b) { return a.to < b.to + b.bytes && b.to < a.to + a.bytes; }

  std::vector<Piece> pieces_;  // the first is the dynamic memory
  std::vector<Landed> landed_;
  std::set<const void*> hidden_barriers_;
  bool fenced_ = false;
};

}  // namespace emu
