// Vec by Vec from global to shared memory in the background; committed and awaited by ptx/copy.h.
#pragma once

#include <type_traits>

#include "device/ptx/copy.h"
#include "device/vec.h"

namespace warpsmith {

template <class T, int n>
__device__ __forceinline__ void copy_async(Vec<T, n>* shared, const T* global, uint64_t policy) {
  using Raw = std::conditional_t<sizeof(*shared) == 16, uint4, uint2>;
  static_assert(sizeof(Raw) == sizeof(*shared), "there are copies of 8 and 16 bytes");
  ptx::cp_async_with_policy(reinterpret_cast<Raw*>(shared), reinterpret_cast<const Raw*>(global), policy);
}

// The same where `go`; else nothing is read or written.
template <class T, int n>
__device__ __forceinline__ void copy_async_if(bool go, Vec<T, n>* shared, const T* global, uint64_t policy) {
  using Raw = std::conditional_t<sizeof(*shared) == 16, uint4, uint2>;
  static_assert(sizeof(Raw) == sizeof(*shared), "there are copies of 8 and 16 bytes");
  ptx::cp_async_with_policy_if(go, reinterpret_cast<Raw*>(shared), reinterpret_cast<const Raw*>(global), policy);
}

}  // namespace warpsmith
