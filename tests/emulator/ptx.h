// What device/ptx/*.h offer, without PTX. Included in place of each of them.
#pragma once

#include "emulator.h"
#include "matrix.h"

#if !defined(EMULATED_ARCH) || EMULATED_ARCH >= 890
#define WARPSMITH_HAS_FP8_CVT 1
#endif

namespace warpsmith::ptx {

// --- global memory ---------------------------------------------------------------------------------------------------

template <class Word>
Word load_aligned(const Word* from) {
  emu::check_aligned(from, sizeof(Word), "a load");
  return *from;
}

inline uint4 load_streaming(const uint4* from) { return load_aligned(from); }
inline uint4 load_streaming(const uint4* from, uint64_t) { return load_aligned(from); }
inline uint4 load_once(const uint4* from, uint64_t) { return load_aligned(from); }
template <class Word>
Word load_cached(const Word* from, uint64_t) {
  return load_aligned(from);
}

inline void store_aligned(uint4* to, const uint4& v) {
  emu::check_aligned(to, sizeof(uint4), "a store");
  *to = v;
}

inline void store_streaming(uint4* to, const uint4& v) { store_aligned(to, v); }
inline void store_at_once(uint4* to, const uint4& v) { store_aligned(to, v); }

inline constexpr uint64_t kEvictLastOnSm90 = 0x14f0000000000000, kEvictNormalOnSm90 = 0x16f0000000000000;
inline uint64_t policy_evict_last() { return kEvictLastOnSm90; }
inline uint64_t policy_evict_normal() { return kEvictNormalOnSm90; }
inline uint64_t policy_evict_first() { return 0; }

inline uint64_t load_relaxed(const uint64_t* from) {
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(from)).load();
}
inline void store_relaxed(uint64_t* to, uint64_t word) { std::atomic_ref<uint64_t>(*to).store(word); }
inline uint32_t inc_acq_rel(uint32_t* word, uint32_t last) {
  const std::atomic_ref<uint32_t> at(*word);
  uint32_t old = at.load();
  while (!at.compare_exchange_weak(old, old >= last ? 0 : old + 1)) continue;
  return old;
}

// --- copies in the background ----------------------------------------------------------------------------------------

inline void cp_async(uint4* shared, const uint4* global) { emu::copy_later(shared, global, 16); }
template <class Word>
void cp_async_if(bool go, Word* shared, const Word* global) {
  if (go) emu::copy_later(shared, global, sizeof(Word));
}
template <class Word>
void cp_async_with_policy(Word* shared, const Word* global, uint64_t) {
  emu::copy_later(shared, global, sizeof(Word));
}
template <class Word>
void cp_async_with_policy_if(bool go, Word* shared, const Word* global, uint64_t) {
  if (go) emu::copy_later(shared, global, sizeof(Word));
}
template <class Word>
void cp_async_zfill(Word* shared, const Word* global, bool valid) {
  emu::copy_later(shared, global, sizeof(Word), !valid);
}
inline void cp_async_zfill(uint4* shared, const uint4* global, bool valid, uint64_t) {
  emu::copy_later(shared, global, 16, !valid);
}
inline void cp_async_commit() { emu::commit_copies(); }
template <int pending>
void cp_async_wait() {
  emu::wait_copies(pending);
}

inline uint32_t shared_address(const void* pointer) { return emu::shared_offset(pointer); }

inline void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier, uint64_t) {
  emu::check_aligned(shared, 16, "a bulk copy's shared side");
  emu::check_aligned(global, 16, "a bulk copy's global side");
  if (bytes % 16 != 0) emu::fail("a bulk copy of a number of bytes that 16 does not divide");
  emu::load_later(shared, bytes, barrier, emu::cluster_rank(),
                  [=](char* to) { std::memcpy(to, global, static_cast<size_t>(bytes)); });
}

// --- barriers --------------------------------------------------------------------------------------------------------

inline void sync_warps(int barrier, int threads) { emu::sync_some(barrier, threads); }
inline void mbarrier_init(uint64_t* barrier, int arrivals) { emu::barrier_init(barrier, arrivals); }
inline void fence_mbarrier_init() { emu::fence_barriers(); }
inline void fence_proxy_async() { emu::fence_async(); }
inline void mbarrier_arrive_expect(uint64_t* barrier, int bytes) { emu::barrier_arrive(barrier, bytes); }
inline void mbarrier_arrive(uint64_t* barrier) { emu::barrier_arrive(barrier, 0); }
inline void mbarrier_arrive_remote(uint64_t* barrier, int rank) {
  emu::barrier_arrive(static_cast<uint64_t*>(emu::in_block(barrier, rank)), 0);
}
inline void mbarrier_wait(uint64_t* barrier, int parity) { emu::barrier_wait(barrier, parity); }
inline void mbarrier_wait_cluster(uint64_t* barrier, int parity) { emu::barrier_wait(barrier, parity); }
inline void store_async(float* local, uint64_t* barrier, int rank, float value) {
  auto* to = static_cast<float*>(emu::in_block(local, rank));
  emu::arrive_later(static_cast<uint64_t*>(emu::in_block(barrier, rank)), 4, [=] { *to = value; });
}
inline void wait_for_previous_grid() {}
inline void allow_next_grid() {}

// --- arithmetic ------------------------------------------------------------------------------------------------------

inline float exp2_approx(float x) { return std::exp2(x); }
inline float exp2_approx_ftz(float x) {
  const float y = std::exp2(x);
  return std::fpclassify(y) == FP_SUBNORMAL ? 0.0f : y;
}
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float reciprocal_approx_ftz(float x) {
  const float y = 1.0f / (std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x);
  return std::fpclassify(y) == FP_SUBNORMAL ? std::copysign(0.0f, y) : y;
}

inline float max_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::fmax(a, b); }
inline float min_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::fmin(a, b); }

template <class T, class Join>
uint32_t join_halves(uint32_t a, uint32_t b, Join join) {
  uint32_t joined = 0;
  for (int i = 0; i < 32; i += 16) {
    const auto value = [i](uint32_t word) {
      return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(word >> i)));
    };
    joined |= uint32_t{std::bit_cast<uint16_t>(T(join(value(a), value(b))))} << i;
  }
  return joined;
}
template <class T>
uint32_t max_nan_x2(uint32_t a, uint32_t b) {
  return join_halves<T>(a, b, max_nan);
}
template <class T>
uint32_t min_nan_x2(uint32_t a, uint32_t b) {
  return join_halves<T>(a, b, min_nan);
}

inline uint32_t tf32_from_float_even(float x) { return std::bit_cast<uint32_t>(emu::to_tf32(x, true)); }

inline uint32_t half2_from_fp8x2(uint16_t pair, __nv_fp8_interpretation_t format) {
  return std::bit_cast<uint32_t>(__nv_cvt_fp8x2_to_halfraw2(pair, format));
}
inline uint32_t half2_from_e4m3x2(uint16_t pair) { return half2_from_fp8x2(pair, __NV_E4M3); }
inline uint32_t half2_from_e5m2x2(uint16_t pair) { return half2_from_fp8x2(pair, __NV_E5M2); }
inline uint16_t e4m3x2_from_floats(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}
inline uint16_t e5m2x2_from_floats(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E5M2);
}

}  // namespace warpsmith::ptx
