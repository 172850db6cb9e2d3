// The kernel of `async_…`: packs are copied into shared memory in the background, each where its thread finds it again,
// and from there transposed and converted into the buffers that are multiplied: several a thread in turns with
// multiplications, which hide the time of these reads.
#pragma once

#include "device/ptx/copy.h"
#include "gemm/packed_tile.cuh"
#include "host/launch.h"

namespace warpsmith {

template <class T, class Acc, class Tile>
struct AsyncShared {
  using Packs = ThreadPacks<Tile, T>;
  SharedTile<Tile, Acc> tiles[2];
  // A pack is read by the thread that copied it: it waits for its own copies, no barrier is needed.
  uint4 a[Packs::a_packs][Tile::threads], b[Packs::b_packs][Tile::threads];

  __device__ void copy(const PackSource<Tile, T>& from) {
    const auto copy_pack = [](uint4& to, const T* address, bool inside) {
      ptx::cp_async_zfill(&to, reinterpret_cast<const uint4*>(address), inside);
    };
#pragma unroll
    for (int part = 0; part < Packs::parts; ++part) {
      from.each_a(part, [&](int i, auto... pack) { copy_pack(a[i][threadIdx.x], pack...); });
      from.each_b(part, [&](int i, auto... pack) { copy_pack(b[i][threadIdx.x], pack...); });
    }
    ptx::cp_async_commit();
  }

  __device__ Pack<T> a_pack(int i) const { return own(a[i][threadIdx.x]); }
  __device__ Pack<T> b_pack(int i) const { return own(b[i][threadIdx.x]); }

  // The packs that this thread copied.
  __device__ void unpack_to(SharedTile<Tile, Acc>& tile) const {
    ptx::cp_async_wait<0>();
#pragma unroll 1  // all packs at once would take too many registers
    for (int part = 0; part < Packs::parts; ++part) {
#pragma unroll
      for (int i = 0; i < Packs::a_part; ++i) {
        put_transposed(tile, a_pack(part * Packs::a_part + i), part * Packs::a_part + i);
      }
#pragma unroll
      for (int i = 0; i < Packs::b_part; ++i) {
        put_straight(tile, b_pack(part * Packs::b_part + i), part * Packs::b_part + i);
      }
    }
  }
  // A part of them, on its way in registers.
  __device__ void fetch(HeldPacks<Tile, T>& packs, int part) const {
#pragma unroll
    for (int i = 0; i < Packs::a_part; ++i) packs.a[i] = a_pack(part * Packs::a_part + i);
#pragma unroll
    for (int i = 0; i < Packs::b_part; ++i) packs.b[i] = b_pack(part * Packs::b_part + i);
  }

 private:
  __device__ static Pack<T> own(const uint4& from) {
    Pack<T> pack;
    load(pack, reinterpret_cast<const T*>(&from));
    return pack;
  }
};

template <class T, class Acc, class Tile>
__global__ void __launch_bounds__(Tile::threads, (kBlocks<Tile, Acc>)) matmul_async_packs_kernel(const GemmArgs p) {
  extern __shared__ uint4 dynamic[];
  auto& shared = *reinterpret_cast<AsyncShared<T, Acc, Tile>*>(dynamic);
  const int64_t tiles_n = ceil_div(p.n, Tile::bn);
  const int64_t first_row = blockIdx.x / tiles_n * Tile::bm, first_col = blockIdx.x % tiles_n * Tile::bn;
  const ThreadPlace<Tile, Acc> place;
  PackSource<Tile, T> source(p, first_row, first_col);
  Sums<Acc, Tile::tm, Tile::tn> sums;

  // The slice whose packs were copied is complete; asks for the one after it, which has at least half a slice's time.
  const auto next = [&] {
    source.advance();
    if (source.left > 0) shared.copy(source);
    __syncthreads();  // this slice is complete, and nobody reads the one before any longer
  };
  shared.copy(source);
  shared.unpack_to(shared.tiles[0]);
  next();
  int buffer = 0;
  for (; source.left > 0; buffer ^= 1) {
    constexpr int kParts = ThreadPacks<Tile, T>::parts;
    if constexpr (kParts == 1) {
      multiply(sums, shared.tiles[buffer], place);
      shared.unpack_to(shared.tiles[buffer ^ 1]);
    } else {  // parts take turns with multiplications, behind which they are read
      multiply<2>(sums, shared.tiles[buffer], place);
      ptx::cp_async_wait<0>();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        HeldPacks<Tile, T> packs;
        shared.fetch(packs, part);
        multiply<2 * kParts>(sums, shared.tiles[buffer], place, kParts + part);
        packs.store_to(shared.tiles[buffer ^ 1], part);
      }
    }
    cut_sums<T>(p, sums, place, first_row, first_col, source.left);
    next();
  }
  multiply(sums, shared.tiles[buffer], place);
  store_tile<T>(p, sums, place, first_row, first_col, p.k);
}

template <class T, class Acc, class Tile>
void launch_async_packs(const GemmArgs& p, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(AsyncShared<T, Acc, Tile>));
  static_assert(kBytes <= kMostSharedBytes);
  const LaunchConfig config{static_cast<unsigned>(tiles_of<Tile>(p)), Tile::threads, kBytes};
  launch<&matmul_async_packs_kernel<T, Acc, Tile>>(config, stream, p);
}

}  // namespace warpsmith
