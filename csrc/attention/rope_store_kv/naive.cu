// Rotary positions and the cache, a block per token and a pair a thread; heads of any length and alignment.
//   Every thread finds the angle of its pair anew for each head. Bound: the number of instructions.
#include "attention/rope_store_kv/token.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

// Pair `pair` of a head at x, turned, as values of T.
template <class T>
__device__ __forceinline__ void turn_pair(T& low, T& high, const T* x, int first, int second, float cosine,
                                          float sine) {
  float a = to_float(x[first]), b = to_float(x[second]);
  rotate<T>(a, b, cosine, sine);
  low = from_float<T>(a);
  high = from_float<T>(b);
}

// Turns all heads of a token, or of a key only reads them: `write(head, column, value)` gets every value.
template <class T, class Write>
__device__ __forceinline__ void turn_heads(const RopeStoreKvArgs& a, const HeadRows& from, int heads, bool copies,
                                           int sequence, int i, Write&& write) {
  const RotaryAngles& angles = a.angles;
  const int rest = copies ? a.store.d - a.rotary() : 0, per_head = angles.pairs + rest;
  const T* token = static_cast<const T*>(from.data) + sequence * from.batch + i * from.token;
  for (int at = static_cast<int>(threadIdx.x); at < heads * per_head; at += kStoreThreads) {
    const int head = at / per_head, pair = at - head * per_head;
    const T* x = token + head * from.head;
    if (pair >= angles.pairs) {  // stays as it is
      write(head, angles.pairs + pair, x[angles.pairs + pair]);
      continue;
    }
    float cosine, sine;
    rotary_angles<T, 1>(&cosine, &sine, angles, sequence, rotary_token(a, sequence, i), pair);
    const int first = angles.interleaved ? 2 * pair : pair;
    const int second = angles.interleaved ? 2 * pair + 1 : pair + angles.pairs;
    T low, high;
    turn_pair(low, high, x, first, second, cosine, sine);
    write(head, first, low);
    write(head, second, high);
  }
}

template <class T, class C>
__global__ void __launch_bounds__(kStoreThreads) rope_store_kv_naive_kernel(const RopeStoreKvArgs a) {
  const StoreKvArgs& s = a.store;
  const int sequence = static_cast<int>(blockIdx.x) / s.m, i = static_cast<int>(blockIdx.x) - sequence * s.m;

  // queries
  T* y = static_cast<T*>(a.q.y) + sequence * a.q.y_batch + i * a.q.y_token;
  const HeadRows q{const_cast<void*>(a.q.x), a.q.x_batch, a.q.x_token, a.q.x_head};
  turn_heads<T>(a, q, a.q.heads, !a.in_place, sequence, i,
                [&](int head, int column, T value) { y[head * a.q.y_head + column] = value; });

  // keys and values
  InPage to;
  if (!find_slot(to, s, sequence, i, load_slot(s, sequence, blockIdx.x))) return;
  C* cache = static_cast<C*>(s.k_cache.data) + to.page * s.k_cache.batch + to.token * s.k_cache.token;
  turn_heads<T>(a, s.k, s.heads, true, sequence, i, [&](int head, int column, T value) {
    const float inverse = std::is_same_v<T, C> ? 1.0f : inverse_scale(s.k_scale, s.scale_step_k, head);
    store(cache + head * s.k_cache.head + column, as_stored<C>(Vec<T, 1>{value}, inverse));
  });
  store_heads<T, C, 1>(s.v, s.v_cache, s.v_scale, s.scale_step_v, s.heads, to, sequence, i, s.dv);
}

const char* takes(const RopeStoreKvArgs& a) { return needs_countable_tokens(a); }

void launch(const RopeStoreKvArgs& a, cudaStream_t stream) {
  dispatch_store(a.store, [&]<class T, class C>() {
    const unsigned tokens = static_cast<unsigned>(a.store.batch) * static_cast<unsigned>(a.store.m);
    warpsmith::launch<&rope_store_kv_naive_kernel<T, C>>({tokens, kStoreThreads}, stream, a);
  });
}

const Register<RopeStoreKvArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
