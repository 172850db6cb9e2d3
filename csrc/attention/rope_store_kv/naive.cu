// Rotary positions and the cache, a block per token and a pair a thread; heads of any length and alignment.
//   Every thread finds the angle of its pair anew for each head. Bound: the number of instructions.
#include "attention/rope_store_kv/token.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

// Turns all heads of a token: `writer(head)` gives what writes a value of that head to a column.
template <class T, class Writer>
__device__ __forceinline__ void turn_heads(const RopeStoreKvArgs& a, const HeadRows& from, int heads, bool copies,
                                           int sequence, int i, Writer&& writer) {
  const RotaryAngles& angles = a.angles;
  const int rest = copies ? a.store.d - a.rotary() : 0, per_head = angles.pairs + rest;
  const T* token = static_cast<const T*>(from.data) + sequence * from.batch + i * from.token;
  for (int at = static_cast<int>(threadIdx.x); at < heads * per_head; at += kStoreThreads) {
    const int head = at / per_head, pair = at - head * per_head;
    const T* x = token + head * from.head;
    const auto write = writer(head);  // first: what it divides by is not to be kept beside angles
    if (pair >= angles.pairs) {       // stays as it is
      write(angles.pairs + pair, x[angles.pairs + pair]);
      continue;
    }
    float cosine, sine;
    rotary_angles<T, 1>(&cosine, &sine, angles, sequence, rotary_token(a, sequence, i), pair);
    const int first = angles.interleaved ? 2 * pair : pair;
    const int second = angles.interleaved ? 2 * pair + 1 : pair + angles.pairs;
    float low = to_float(x[first]), high = to_float(x[second]);
    rotate<T>(low, high, cosine, sine);
    write(first, from_float<T>(low));
    write(second, from_float<T>(high));
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
                [&](int head) { return [to = y + head * a.q.y_head](int column, T value) { to[column] = value; }; });

  // keys and values
  InPage to;
  if (!find_slot(to, s, sequence, i, load_slot(s, sequence, blockIdx.x))) return;
  C* cache = static_cast<C*>(s.k_cache.data) + to.page * s.k_cache.batch + to.token * s.k_cache.token;
  turn_heads<T>(a, s.k, s.heads, true, sequence, i, [&](int head) {
    const float inverse = std::is_same_v<T, C> ? 1.0f : inverse_scale(s.k_scale, s.scale_step_k, head);
    return [to = cache + head * s.k_cache.head, inverse](int column, T value) {
      store(to + column, as_stored<C>(Vec<T, 1>{value}, inverse));
    };
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
