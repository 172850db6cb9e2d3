// The device side of CUDA on the CPU: what a kernel, compiled by a C++ compiler, runs on. Included before everything else
// of a .cu; see __init__.py for what the sources go through first.
//
// A thread of a block is a fibre, which runs until it has to wait for others; a block is a thread of the machine, so that
// the blocks of a cluster run side by side; clusters run one after another. Shared memory is thread-local and begins as
// NaN; copies that run in the background are made as late as whoever waits for them allows. What the copy engine reads and
// writes is a shadow of shared memory (shadow.h), because its accesses and those of threads are ordered by fences alone.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace emu {

struct Place {
  uint3 thread, block;
  dim3 block_size, grid_size;
};

const Place& place();

// Ends the launch with an error.
[[noreturn]] void fail(const char* message);

// Lets other threads run until `ready`.
void wait_until(const std::function<bool()>& ready);

void sync_threads();
void sync_some(int barrier, int threads);
void cluster_arrive();
void cluster_wait();
int cluster_rank();

void* dynamic_shared(size_t alignment);
uint32_t shared_offset(const void* p);  // as a 32-bit address
void* in_block(void* p, int rank);      // the same variable in another block of the cluster

// What `bytes` bytes the lanes of `mask` give; lanes outside it give nothing.
void exchange_bytes(uint32_t mask, const void* mine, size_t bytes, void* all);

inline int lane() {
  const Place& at = place();
  return static_cast<int>((at.thread.x + at.block_size.x * (at.thread.y + at.block_size.y * at.thread.z)) % 32);
}

template <class T>
struct Lanes {
  T of[32];
};

template <class T>
Lanes<T> exchange(const T& mine, uint32_t mask = 0xffffffffu) {
  Lanes<T> all;
  exchange_bytes(mask, &mine, sizeof(T), static_cast<void*>(&all));
  return all;
}

void check_aligned(const void* p, size_t to, const char* what);

void copy_later(void* to, const void* from, size_t bytes, bool zeros = false);
void commit_copies();
void wait_copies(int pending);

void barrier_init(uint64_t* barrier, int arrivals);
void barrier_arrive(uint64_t* barrier, int bytes);  // one arrival, and bytes to expect
void barrier_complete(uint64_t* barrier, int bytes);
void barrier_wait(uint64_t* barrier, int parity);
void arrive_later(uint64_t* barrier, int bytes, std::function<void()> copy);

// The async proxy (PTX ISA, "Memory Consistency Model: Proxies").
void fence_async();     // fence.proxy.async: what the block's threads have done comes before copies that begin later
void fence_barriers();  // fence.mbarrier_init

// `bytes` that the copy engine brings to this place of block `rank` and counts on that block's barrier of the name. Until
// they have landed, NaN is there. `write` puts them to `to`.
void load_later(void* shared, int bytes, uint64_t* barrier, int rank, std::function<void(char* to)> write);

// Copies from shared memory by the copy engine, which read as late as a wait allows.
void store_later(void* global, const void* shared, int bytes);
void commit_stores();
void wait_stores(int pending);

// How the next launch on this thread calls its kernel, and where the library keeps shared memory.
using Invoke = void (*)(const void* kernel, void** arguments);
void next_launch(Invoke invoke, char* (*shared_marker)());

inline char* shared_marker() {
  static thread_local char marker;
  return &marker;
}

template <auto kernel>
struct Named {};

// The name of the kernel with all its template arguments, as compiled files have it: g++ leaves out those by default.
template <class T>
std::string_view spelling() {
  static const std::string text = [] {
    const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, nullptr),
                                                      std::free);
    std::string_view all(name.get());
    all = all.substr(all.find('&') + 1);
    all.remove_suffix(1);  // of Named<&(kernel)>
    if (all.front() == '(' && all.back() == ')') all = all.substr(1, all.size() - 2);
    return std::string(all);
  }();
  return text;
}

// Whether launches start nothing, and are noted instead.
bool is_dry();

// Begins the note of the next launch on this thread.
void begin_note(std::string_view kernel);
void note_bytes(const void* bytes, size_t count);

// Clears what lies between the members. The union has g++ go through an array of structs element by element: the loop that
// it makes otherwise clears bytes of them, and leaves what follows (seen with 12.2, of arrays of more than 64 bytes).
template <class T>
void clear_padding(void* object) {
  union Alone {
    T value;
    Alone() = delete;
    ~Alone() = delete;
  };
  __builtin_clear_padding(static_cast<Alone*>(object));
}

// What an argument says.
template <class T>
void note_argument(const T& argument) {
  alignas(T) unsigned char copy[sizeof(T)];
  std::memcpy(copy, static_cast<const void*>(&argument), sizeof(T));
  clear_padding<T>(copy);
  note_bytes(copy, sizeof(T));
}

template <class... Params>
void prepare_launch(void (*)(Params...), std::string_view name, const std::type_identity_t<Params>&... values) {
  next_launch(
      [](const void* kernel, void** arguments) {
        [&]<size_t... i>(std::index_sequence<i...>) {
          reinterpret_cast<void (*)(Params...)>(const_cast<void*>(kernel))(
              *static_cast<std::remove_cv_t<Params>*>(arguments[i])...);
        }(std::index_sequence_for<Params...>{});
      },
      shared_marker);
  if (is_dry()) {
    begin_note(name);
    (note_argument(values), ...);
  }
}

// The operator itself, which chooses its rung, becomes `op.auto`: `op` has an implementation for tensors of the CPU. What
// writes over an argument (`op_`) chooses as `op` does.
template <class Library, class Function>
void implement(Library& library, const std::string& name, Function function) {
  if (name.ends_with(".rung") || name.starts_with("_")) {
    library.impl(name.c_str(), function);
  } else if (!name.ends_with("_")) {
    library.impl((name + ".auto").c_str(), function);
  }
}

}  // namespace emu

#ifdef EMULATED_DEVICE

#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __CUDACC__ 1
#ifndef EMULATED_ARCH
#define EMULATED_ARCH 900
#endif
#define __CUDA_ARCH__ EMULATED_ARCH
#define threadIdx (emu::place().thread)
#define blockIdx (emu::place().block)
#define blockDim (emu::place().block_size)
#define gridDim (emu::place().grid_size)

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) {
    return std::fmin(a, b);
  } else {
    return std::min<std::common_type_t<A, B>>(a, b);
  }
}

template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) {
    return std::fmax(a, b);
  } else {
    return std::max<std::common_type_t<A, B>>(a, b);
  }
}

inline void __syncthreads() { emu::sync_threads(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { emu::exchange('\0', mask); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __nanosleep(unsigned) {
  bool once = false;
  emu::wait_until([&] { return std::exchange(once, true); });
}
[[noreturn]] inline void __trap() { emu::fail("trap"); }
inline size_t __cvta_generic_to_shared(const void* p) { return emu::shared_offset(p); }

namespace emu {
// The lane at which a shuffle of `width` neighbours looks; its own where that is outside.
inline int in_segment(int to, int width) { return to / width == lane() / width && to >= 0 ? to : lane(); }
}  // namespace emu

template <class T>
T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
  return emu::exchange(value, mask).of[emu::lane() / width * width + (from & (width - 1))];
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int distance, int width = 32) {
  return emu::exchange(value, mask).of[emu::in_segment(emu::lane() ^ distance, width)];
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance, int width = 32) {
  return emu::exchange(value, mask).of[emu::in_segment(emu::lane() - static_cast<int>(distance), width)];
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned distance, int width = 32) {
  return emu::exchange(value, mask).of[emu::in_segment(emu::lane() + static_cast<int>(distance), width)];
}
inline unsigned __ballot_sync(uint32_t mask, int predicate) {
  const auto all = emu::exchange(predicate, mask);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (mask >> i & 1) != 0 && all.of[i] != 0 ? 1u << i : 0u;
  return bits;
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline unsigned __reduce_add_sync(uint32_t mask, unsigned value) {
  const auto all = emu::exchange(value, mask);
  unsigned sum = 0;
  for (int i = 0; i < 32; ++i) sum += (mask >> i & 1) != 0 ? all.of[i] : 0;
  return sum;
}

inline int __reduce_max_sync(uint32_t mask, int value) {
  const auto all = emu::exchange(value, mask);
  for (int i = 0; i < 32; ++i) value = (mask >> i & 1) != 0 ? std::max(value, all.of[i]) : value;
  return value;
}

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float rsqrtf(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7))) & 0xff;
    if ((pick & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    found |= byte << (8 * i);
  }
  return found;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
// Rounded once: the product of two 16-bit values is exact in a double, and so nearly the sum.
template <class T>
T emulated_fma(T a, T b, T c) {
  const auto wide = [](T x) { return static_cast<double>(static_cast<float>(x)); };
  return T(wide(a) * wide(b) + wide(c));
}
inline __half __hfma(__half a, __half b, __half c) { return emulated_fma(a, b, c); }
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { return emulated_fma(a, b, c); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}

template <class T, class Change>
T emulated_atomic(T* at, Change change) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  static_assert(sizeof(T) == sizeof(Bits));
  std::atomic_ref<Bits> word(*reinterpret_cast<Bits*>(at));
  Bits bits = word.load(), changed;
  T old;
  do {
    std::memcpy(static_cast<void*>(&old), &bits, sizeof(T));
    const T now = change(old);
    std::memcpy(&changed, &now, sizeof(T));
  } while (!word.compare_exchange_weak(bits, changed));
  return old;
}
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> by) {
  return emulated_atomic(at, [by](T old) { return old + by; });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> with) {
  return emulated_atomic(at, [with](T old) { return old < with ? with : old; });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> with) {
  return emulated_atomic(at, [with](T old) { return with < old ? with : old; });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> with) {
  return emulated_atomic(at, [with](T old) { return old | with; });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> with) {
  return emulated_atomic(at, [with](T) { return with; });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  return emulated_atomic(at, [last](unsigned old) { return old >= last ? 0 : old + 1; });
}

#endif  // EMULATED_DEVICE
