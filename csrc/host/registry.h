// The rungs of a ladder, as the compiled library knows them. A rung enters itself:
//
//   const Register<SoftmaxArgs> registered{"online", /*min_sm=*/80, takes, launch};
//
// What chooses between them is in ladder.h, which the rungs do not include.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "host/rehearsal.h"

namespace warpsmith {

template <class Args>
struct Rung {
  std::string_view name;
  int min_sm;
  const char* (*takes)(const Args&);  // nullptr: the kernel can take the call; otherwise the reason why not
  void (*launch)(const Args&, cudaStream_t);
  bool (*suits)(const Args&);    // a good choice for `auto`
  bool clusters;                 // whether its blocks come in clusters
  const Rung* before = nullptr;  // the one that had entered itself

  // Blocks of the cluster that the call takes, where the current device does not hold one of them; otherwise 0.
  int unheld_cluster(const Args& args) const {
    if (!clusters) return 0;
    const Rehearsal rehearsal;
    launch(args, nullptr);
    return rehearsal.unheld();
  }
};

// The rung that has entered itself last; each knows the one before.
template <class Args>
const Rung<Args>*& last_entered() {
  static const Rung<Args>* rung = nullptr;
  return rung;
}

template <class Args>
bool always_suits(const Args&) {
  return true;
}

template <class Args>
struct Register {
  Register(std::string_view name, int min_sm, const char* (*takes)(const Args&),
           void (*launch)(const Args&, cudaStream_t), bool (*suits)(const Args&) = always_suits<Args>,
           bool clusters = false)
      : rung{name, min_sm, takes, launch, suits, clusters, last_entered<Args>()} {
    last_entered<Args>() = &rung;
  }
  Register(const Register&) = delete;
  Register& operator=(const Register&) = delete;

  const Rung<Args> rung;
};

}  // namespace warpsmith
