// The rungs of a ladder, as the compiled library knows them. A rung enters itself:
//
//   const Register<SoftmaxArgs> registered{"online", /*min_sm=*/80, takes, launch};
//
// What chooses between them is in ladder.h, which the rungs do not include.
#pragma once

#include <cuda_runtime.h>

#include <string_view>
#include <vector>

#include "host/rehearsal.h"

namespace warpsmith {

template <class Args>
struct Rung {
  std::string_view name;
  int min_sm;
  const char* (*takes)(const Args&);  // nullptr: the kernel can take the call; otherwise the reason why not
  void (*launch)(const Args&, cudaStream_t);
  bool (*suits)(const Args&);  // a good choice for `auto`
  bool clusters;               // whether its blocks come in clusters
  bool unproven = false;       // no GPU has verified it: only taken by name

  // Blocks of the cluster that the call takes, where the current device does not hold one of them; otherwise 0.
  int unheld_cluster(const Args& args) const {
    if (!clusters) return 0;
    const Rehearsal rehearsal;
    launch(args, nullptr);
    return rehearsal.unheld();
  }
};

// Ladder order once the spec has spoken, link order before.
template <class Args>
std::vector<Rung<Args>>& rungs() {
  static std::vector<Rung<Args>> list;
  return list;
}

template <class Args>
bool always_suits(const Args&) {
  return true;
}

template <class Args>
struct Register {
  Register(std::string_view name, int min_sm, const char* (*takes)(const Args&),
           void (*launch)(const Args&, cudaStream_t), bool (*suits)(const Args&) = always_suits<Args>,
           bool clusters = false) {
    rungs<Args>().push_back({name, min_sm, takes, launch, suits, clusters});
  }
};

}  // namespace warpsmith
