// A tile of a product by wgmma: where its operands lie in shared memory, how they get there, and how they are multiplied.
#pragma once

#include "device/cluster.h"
#include "device/matrix_descriptor.h"
#include "device/ptx/wgmma.h"
#include "device/wgmma_ring.h"
#include "gemm/gemm.h"
#include "tile/operand_tile.h"
#include "tile/shared_limits.h"

namespace warpsmith {

inline constexpr int kWarpgroup = 128, kWgmmaRows = 64;

// What a rung decides; its own Plan has besides
//   bm, bn       of a block's tile
//   warpgroups   that multiply
struct WgmmaPlan {
  static constexpr int stages = 1;      // of the ring, a line of 128 bytes along k each
  static constexpr int cluster = 1;     // blocks that share b, whose tiles lie below each other
  static constexpr bool turns = false;  // warpgroups take turns at tiles; otherwise they share a tile's rows
};

template <class T_, Along a_, Along b_, class Plan_>
struct WgmmaConfig {
  using T = T_;
  using Plan = Plan_;
  static constexpr int bm = Plan::bm, bn = Plan::bn, bk = 128 / static_cast<int>(sizeof(T));  // a line of k
  static constexpr int stages = Plan::stages, cluster = Plan::cluster;
  static constexpr int warpgroups = Plan::warpgroups;
  static constexpr bool turns = Plan::turns;
  static constexpr int rows = turns ? bm : bm / warpgroups, strips = rows / kWgmmaRows;  // of a warpgroup
  static constexpr Major a_major = a_ == Along::k ? Major::k : Major::mn,
                         b_major = b_ == Along::k ? Major::k : Major::mn;
  using Factor = std::conditional_t<std::is_same_v<T, float>, Tf32Operand, T>;
  // Of TF32 wgmma takes lines along k alone from shared memory: a whose lines run along m goes through registers.
  static constexpr bool a_in_registers = sizeof(T) == 4 && a_major == Major::mn;
  using Kind = WgmmaKind<Factor, Factor, float, a_in_registers ? Major::k : a_major, b_major>;
  using A = WgmmaOperand<a_major, bm, bk, sizeof(T)>;
  using B = WgmmaOperand<b_major, bn, bk, sizeof(T)>;
  static_assert(strips * kWgmmaRows * (turns ? 1 : warpgroups) == bm, "whole instructions");

  // The row, of the 64 of an instruction, of a thread's sums 4 j and 4 j + 1, and of 4 j + 2 and 4 j + 3 below. Rows that go
  // through registers are numbered so that a warp's loads of them use every bank once: four neighbours and another four, 16
  // further on.
  __device__ __forceinline__ static int own_row(int below) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp % 4;
    if constexpr (a_in_registers) {
      return warp / 2 * 32 + (warp % 2 * 2 + below) * 4 + lane / 16 * 16 + lane / 4 % 4;
    } else {
      return warp * 16 + below * 8 + lane / 4;
    }
  }

  struct Stage {
    alignas(1024) char a[A::bytes];  // [bm, bk] along k; panels [bm / 64][64 k][64 m] otherwise
    alignas(1024) char b[B::bytes];  // as a, of bn
  };
  static_assert(sizeof(Stage) == A::bytes + B::bytes, "what copies bring is all of it");

  // Of a warpgroup: rows 64 i to 64 i + 63 of its share in sums[i], as device/ptx/wgmma.h lays them out.
  using Sums = float[strips][bn / 2];
};

// What a block of a cluster brings of an operand: whole panels where they can be dealt out, otherwise lines of each.
template <class Operand, int cluster>
struct OperandShare {
  static constexpr bool by_panels = !Operand::along_k && Operand::panels % cluster == 0;
  static constexpr int boxes = by_panels ? Operand::panels / cluster : Operand::panels;
  static constexpr int lines = by_panels ? Operand::panel_lines : Operand::panel_lines / cluster;  // of a box
  static constexpr int next_panel = by_panels ? boxes : 0, next_line = by_panels ? 0 : lines;  // from block to block
  static_assert(!Operand::along_k || Operand::panels == 1, "a line holds all of k");
  static_assert(lines % 8 == 0, "whole atoms");
};

#if WARPSMITH_HAS_WGMMA

// Boxes of one operand's tile, from (or row, column) `mn` and `k` on; counted on `full`. In a cluster the tile is brought
// to all blocks, each bringing its share. Of maps of rank 3 the first dimension counts products.
template <class Operand, int cluster, int rank = 2>
__device__ __forceinline__ void copy_operand(char* to, const CUtensorMap& map, int mn, int k, uint64_t* full,
                                             [[maybe_unused]] int product = 0) {
  using Share = OperandShare<Operand, cluster>;
  const int block = cluster == 1 ? 0 : cluster_rank();
#pragma unroll
  for (int i = 0; i < Share::boxes; ++i) {
    const int panel = i + block * Share::next_panel, lines = block * Share::next_line;
    char* box = to + panel * Operand::panel_bytes + lines * Operand::line;
    const int line = Operand::along_k ? mn + lines : k + lines;
    const int value = Operand::along_k ? k : mn + panel * Operand::values_of_line;
    const auto load = [&]<int dimensions>(const int (&corner)[dimensions]) {
      if constexpr (cluster == 1) {
        ptx::tensor_load(box, &map, corner, full);
      } else {
        ptx::tensor_load_multicast(box, &map, corner, full, (1 << cluster) - 1);
      }
    };
    if constexpr (rank == 2) {
      load({line, value});
    } else {
      load({product, line, value});
    }
  }
}

// Brings a stage of the tile at (m, n), for which the caller has the slot, by one thread.
template <class Config>
__device__ __forceinline__ void copy_stage(typename Config::Stage& to, const CUtensorMap& a, const CUtensorMap& b,
                                           int m, int n, int k, uint64_t* full) {
  ptx::mbarrier_arrive_expect(full, sizeof(to));
  copy_operand<typename Config::A, 1>(to.a, a, m, k, full);
  copy_operand<typename Config::B, Config::cluster>(to.b, b, n, k, full);
}

// The share of a warpgroup in the tile: what the instructions get to know of a stage.
template <class Config>
class WgmmaReader {
  using A = typename Config::A;
  using B = typename Config::B;
  using Stage = typename Config::Stage;

 public:
  __device__ __forceinline__ WgmmaReader(const Stage* ring, int warpgroup)
      : a_(A::descriptor(ptx::shared_address(ring->a)).at(warpgroup * A::offset(Config::rows, 0))),
        b_(B::descriptor(ptx::shared_address(ring->b))) {}

  // Issues the products of a stage. `adds`: otherwise the sums begin with it.
  __device__ __forceinline__ void multiply(typename Config::Sums& sums, int slot, bool adds) const {
    const MatrixDescriptor a = a_.at(slot * static_cast<int>(sizeof(Stage)));
    const MatrixDescriptor b = b_.at(slot * static_cast<int>(sizeof(Stage)));
#pragma unroll
    for (int k = 0; k < Config::bk; k += Config::Kind::k) {
#pragma unroll
      for (int i = 0; i < Config::strips; ++i) {
        ptx::wgmma<typename Config::Kind>(sums[i], a.at(A::offset(i * kWgmmaRows, k)).bits(),
                                          b.at(B::offset(0, k)).bits(), adds || k > 0);
      }
    }
  }

  // The same of a in registers, [instructions along k][strips][4].
  template <class Fragments>
  __device__ __forceinline__ void multiply_registers(typename Config::Sums& sums, const Fragments& a, int slot,
                                                     bool adds) const {
    const MatrixDescriptor b = b_.at(slot * static_cast<int>(sizeof(Stage)));
#pragma unroll
    for (int k = 0; k < Config::bk; k += Config::Kind::k) {
#pragma unroll
      for (int i = 0; i < Config::strips; ++i) {
        ptx::wgmma<typename Config::Kind>(sums[i], a[k / Config::Kind::k][i], b.at(B::offset(0, k)).bits(),
                                          adds || k > 0);
      }
    }
  }

 private:
  MatrixDescriptor a_, b_;
};

// Sums of a warpgroup, of `steps` stages from `at` on, which moves behind them. A stage is given back when its products are
// done, while those of the next one run. issued(): once the last ones have begun.
template <class Config, class Issued>
__device__ __forceinline__ void multiply_steps(typename Config::Sums& sums, const WgmmaReader<Config>& reader,
                                               WgmmaRing<Config::stages>& ring, RingSlot<Config::stages>& at, int steps,
                                               Issued&& issued) {
  RingSlot<Config::stages> before;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ring.wait_unread(at);
    ptx::wgmma_fence();
    reader.multiply(sums, at.slot, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) ring.template release_unread<Config::cluster>(before);
    before = at;
    at.advance();
  }
  issued();
  ptx::wgmma_wait<0>(sums);
  ring.template release_unread<Config::cluster>(before);
}

#endif

}  // namespace warpsmith
