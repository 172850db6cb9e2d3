// Products of groups by wgmma: the kernel of gemm/wgmma_product.cuh, whose blocks walk the tiles of all groups.
//   A group's rows begin and end anywhere. Loads of x read on into the next group, whose sums are not stored. Boxes of d, and
//   of groups along k boxes of x and w, end with the group: their maps have a dimension for the row that a box ends before,
//   and one as long as the box for how much of it is wanted, both a row a step, so that the copy engine leaves out what lies
//   past the end, or fills it with zeros. Those maps begin a box before the tensor, where there need not be memory; a box that
//   lies wholly outside a map is read where the map begins (an H200 faults there), so none is asked for. Of groups along k
//   whose lines run along k, loads begin and end at multiples of 16 bytes, and what they bring of other groups is cleared in
//   shared memory. No map is made anew for a group.
#pragma once

#include <type_traits>

#include "device/ptx/barrier.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/tensor_store.h"
#include "device/start_early.h"
#include "gemm/groups.cuh"
#include "gemm/wgmma.h"
#include "gemm/wgmma_product.cuh"
#include "host/min_max.h"
#include "host/tensor_map.h"

namespace warpsmith {

// What a block does, the same for all of them.
struct GroupedWork {
  Groups groups;
  int m, n;                 // of d, of groups along k each
  int down, across, group;  // tiles of d, of groups along k each; rows of tiles that are walked column by column
  int steps;                // along k, of groups of rows
  int next_w;               // in the map of w, from one group to the next: 0 where they share one
};

// Fewer stages than matmul's where the table of groups needs the room.
template <WgmmaTile tile>
struct GroupedPlan : WgmmaMenuPlan<tile> {
  static constexpr int box_lines = tile.swapped ? std::min(tile.bn, 64) : 64;
  static constexpr int table_bytes = sizeof(GroupTable) + 256;  // and the barriers
  static constexpr int stages =
      std::min(12, (kSharedOfSm90 - table_bytes - 4 * box_lines * 128) / ((tile.bm + tile.bn) * 128));
};

// Rows of a matrix, read or written in boxes of so many rows that end before row `end`.
inline MappedTensor map_of_rows(const void* data, Dtype dtype, int64_t rows, int64_t cols, int64_t ld, int box_rows) {
  const int size = size_of(dtype);
  const int64_t pitch = rows > 1 ? ld : ceil_div(cols * size, int64_t{16}) * 16 / size;
  const int64_t shift = box_rows * pitch * size;  // the row that a box ends before is counted from the first
  return {.data = static_cast<const char*>(data) - shift,
          .type = tensor_map_type(dtype),
          .rank = 3,
          .sizes = {rows + 1, box_rows, cols},
          .strides = {pitch, pitch},
          .box = {1, box_rows, 128 / size}};
}

// Where such a box begins: `row` is its first, of which `left` are wanted.
struct RowsOfBox {
  int end, first;

  __device__ __forceinline__ RowsOfBox(int row, int left, int box_rows) {
    const int wanted = min(left, box_rows);
    end = row + wanted;
    first = box_rows - wanted;
  }
};

// A tile of d.
struct GroupItem {
  int group, row, col;
  int first, end;  // of the group
};

#if WARPSMITH_HAS_WGMMA

// Where loads of a group along k begin: boxes whose lines run along k begin at multiples of 16 bytes.
template <class Config>
__device__ __forceinline__ int first_loaded(const GroupItem& item) {
  constexpr int kChunk = 16 / static_cast<int>(sizeof(typename Config::T));
  return Config::a_major == Major::k ? item.first / kChunk * kChunk : item.first;
}

// An operand's boxes that end with a group, of a matrix of `cols` columns, from column `col` on. In place of boxes past the
// last column comes the first one again: sums with it are not stored.
template <class Operand>
__device__ __forceinline__ void copy_rows(char* to, const CUtensorMap& map, const RowsOfBox& rows, int col, int cols,
                                          uint64_t* full) {
#pragma unroll
  for (int panel = 0; panel < Operand::panels; ++panel) {
    const int at = col + panel * Operand::values_of_line;
    ptx::tensor_load(to + panel * Operand::panel_bytes, &map, {rows.end, rows.first, at < cols ? at : col}, full);
  }
}

// Calls body(item) for the tiles of this block.
template <class Config, class Body>
__device__ __forceinline__ void for_each_group_item(const GroupedWork& work, const GroupTable& table, Body&& body) {
  constexpr int kRows = Config::swapped ? Config::bn : Config::bm, kCols = Config::swapped ? Config::bm : Config::bn;
  const int groups = static_cast<int>(work.groups.count), each = work.down * work.across;
  const int count = Config::along_k ? groups * each : table.before[groups] * work.across;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const int group = Config::along_k ? index / each : table.group_of(index / work.across, groups);
    const int before = Config::along_k ? group * work.down : table.before[group];
    const int down = Config::along_k ? work.down : table.before[group + 1] - before;
    const TileCoord tile = grouped_tile(index - before * work.across, down, work.across, work.group);
    const GroupSpan span = span_of(work.groups, group);
    const int first = static_cast<int>(span.first);
    body(GroupItem{group, (Config::along_k ? 0 : first) + static_cast<int>(tile.m) * kRows,
                   static_cast<int>(tile.n) * kCols, first, static_cast<int>(span.end)});
  }
}

#endif

// Sums to boxes in shared memory, of 64 columns of d, which the copy engine stores while the warpgroup goes on.
template <class Config>
class GroupBoxes {
  static constexpr int kCols = std::min(Config::bn, 64), kAcross = Config::bn / kCols;
  static constexpr int kEach = Config::strips * kAcross, kValues = kCols / 2;  // boxes of a tile; a thread's of a box
  static constexpr int kLine = 128, kLines = Config::Plan::box_lines, kBoxes = 2;

 public:
  struct Shared {
    alignas(1024) char of[kBoxes][kLines * kLine];
  };

  __device__ explicit GroupBoxes(Shared& shared) : shared_(shared) {}

#if WARPSMITH_HAS_WGMMA
  // `cols`: of d. `m`, `n`: where the warpgroup's sums begin, as the instruction sees them.
  template <class Args>
  __device__ __forceinline__ void store(const typename Config::Sums& sums, const Args& args, const GroupItem& item,
                                        const CUtensorMap& map, int cols, int m, int n) {
#pragma unroll
    for (int box = 0; box < kEach; ++box) {
      const int at_m = m + box / kAcross * kWgmmaRows, at_n = n + box % kAcross * kCols;
      const int row = Config::swapped ? at_n : at_m, col = Config::swapped ? at_m : at_n;  // of d
      if (!Config::along_k && (row >= item.end || col >= cols)) continue;
      char* to = shared_.of[next_];
      next_ ^= 1;
      if (leads()) ptx::stores_wait_read<kBoxes - 1>();
      meet();
      float values[kValues];  // finished box by box: what that takes would not fit registers for all of them
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] = sums[box / kAcross][box % kAcross * kValues + i];
      Config::finish(values, args, item, at_m, at_n);
      put(to, values, args);
      ptx::fence_proxy_async();
      meet();
      if (leads()) {
        const RowsOfBox rows(row, item.end - row, kLines);
        if constexpr (Config::along_k) {
          ptx::tensor_store(&map, {item.group, row, col}, to);
        } else {
          ptx::tensor_store(&map, {rows.end, rows.first, col}, to);
        }
        ptx::stores_commit();
      }
    }
  }

  // The block's shared memory must last until it has been read.
  __device__ __forceinline__ void finish() {
    if (leads()) ptx::stores_wait_read<0>();
  }

 private:
  // stmatrix: eight lanes name the lines of 8 x 8 values, upper and lower of the left eight columns, then of the right.
  template <class Args>
  __device__ __forceinline__ static void put(char* box, const float (&values)[kValues], const Args& args) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp % 4;
#pragma unroll
    for (int j = 0; j < kCols / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word)
        words[word] = Config::pack(args, values[4 * j + 2 * word], values[4 * j + 2 * word + 1]);
      if constexpr (Config::swapped) {
        const int line = 8 * (j + lane / 16) + lane % 8, chunk = warp * 2 + lane / 8 % 2;
        ptx::stmatrix_trans(box + line * kLine + (chunk ^ line % 8) * 16, words);
      } else {
        const int line = warp * 16 + lane % 16, chunk = j + lane / 16;
        ptx::stmatrix(box + line * kLine + (chunk ^ line % 8) * 16, words);
      }
    }
  }

  __device__ __forceinline__ static bool leads() { return threadIdx.x % kWarpgroup == 0; }
  // Of the warpgroup's threads; its number is that of its barrier.
  __device__ __forceinline__ static void meet() {
    ptx::sync_warps(static_cast<int>(threadIdx.x) / kWarpgroup + 1, kWarpgroup);
  }
#endif

  Shared& shared_;
  int next_ = 0;  // box
};

#if WARPSMITH_HAS_WGMMA

// Config has besides that of gemm/wgmma_tile.cuh
//   along_k, swapped               as its tile and the groups are
//   multiply(sums, reader, shared, item, ...)  as multiply_steps
//   finish(sums, args, item, m, n) what becomes of the sums of a box, in a row of sums as of an instruction, before they are
//                                  rounded; of a group without values of k zeros, whatever they are
//   pack(args, low, high)          two sums as they are stored
template <class Config, class Args>
__device__ __forceinline__ void multiply_groups(const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& d,
                                                const Args& args, const GroupedWork& work) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&a);
    ptx::prefetch_tensor_map(&b);
    ptx::prefetch_tensor_map(&d);
    shared.barriers.init(1, (Config::turns ? 1 : Config::warpgroups) * (kWarpgroup / kWarp));
    ptx::fence_mbarrier_init();
  }
  start_early();
  if constexpr (Config::along_k) {
    __syncthreads();
  } else {
    shared.table.fill(work.groups, Config::swapped ? Config::bn : Config::bm, Config::threads);
  }
  RingSlot<Config::stages> at;
  // One at least: of an empty group too there are sums to finish, as zeros.
  const auto steps_of = [&](const GroupItem& item) {
    return Config::along_k ? max((item.end - first_loaded<Config>(item) + Config::bk - 1) / Config::bk, 1) : work.steps;
  };
  if (warpgroup < 0) {
    ptx::lower_registers<Config::Plan::copier_registers>();
    if (threadIdx.x / kWarp == 0 && ptx::elect_lane()) {
      for_each_group_item<Config>(work, shared.table, [&](const GroupItem& item) {
        const int m = Config::swapped ? item.col : item.row, n = Config::swapped ? item.row : item.col;
        const int steps = steps_of(item), of_w = item.group * work.next_w;
#pragma unroll 1
        for (int step = 0; step < steps; ++step, at.advance()) {
          uint64_t* full = shared.barriers.acquire(at);
          auto& to = shared.ring[at.slot];
          ptx::mbarrier_arrive_expect(full, sizeof(to));
          const int k = step * Config::bk;
          if constexpr (Config::along_k && Config::a_major == Major::k) {
            const int at_k = first_loaded<Config>(item) + k;
            copy_operand<typename Config::A, 1, 2>(to.a, a, m, at_k, full);
            copy_operand<typename Config::B, 1, 2>(to.b, b, n, at_k, full);
          } else if constexpr (Config::along_k) {
            const int row = item.first + k, left = item.end - row;
            const RowsOfBox rows(left > 0 ? row : 0, max(left, 1), Config::bk);  // in place of none the first
            copy_rows<typename Config::A>(to.a, a, rows, m, work.m, full);
            copy_rows<typename Config::B>(to.b, b, rows, n, work.n, full);
          } else if constexpr (Config::swapped) {
            copy_operand<typename Config::A, 1, 3>(to.a, a, m, k, full, of_w);
            copy_operand<typename Config::B, 1, 2>(to.b, b, n, k, full);
          } else {
            copy_operand<typename Config::A, 1, 2>(to.a, a, m, k, full);
            copy_operand<typename Config::B, 1, 3>(to.b, b, n, k, full, of_w);
          }
        }
      });
    }
    __syncwarp();
  } else {
    ptx::raise_registers<Config::Plan::multiplier_registers>();
    const int share = Config::turns ? 0 : warpgroup;  // of the rows of the instruction
    const WgmmaReader<Config> reader(shared.ring, share);
    GroupBoxes<Config> boxes(shared.staged[warpgroup]);
    int turn = 0;
    if constexpr (Config::turns) Turns::begin(warpgroup);
    for_each_group_item<Config>(work, shared.table, [&](const GroupItem& item) {
      const int steps = steps_of(item);
      if constexpr (Config::turns) {
        const bool mine = turn == warpgroup;
        turn ^= 1;
        if (!mine) return skip(at, steps);
        Turns::wait(warpgroup);
      }
      const auto issued = [&] {
        if constexpr (Config::turns) Turns::pass(warpgroup);
      };
      typename Config::Sums sums;
      Config::multiply(sums, reader, shared, item, at, steps, issued);
      const int m = (Config::swapped ? item.col : item.row) + share * Config::rows;
      const int n = Config::swapped ? item.row : item.col;
      boxes.store(sums, args, item, d, work.n, m, n);
    });
    boxes.finish();
  }
}

#endif

// How the tiles of the menu lie in d. `k`: of groups of rows.
template <class Config>
GroupedWork grouped_work(const Groups& groups, int64_t m, int64_t n, int64_t k, bool shared_w) {
  constexpr int kRows = Config::swapped ? Config::bn : Config::bm, kCols = Config::swapped ? Config::bm : Config::bn;
  constexpr int kTogether = 1024;  // rows of d
  return {.groups = groups,
          .m = static_cast<int>(m),
          .n = static_cast<int>(n),
          .down = static_cast<int>(ceil_div(m, kRows)),
          .across = static_cast<int>(ceil_div(n, kCols)),
          .group = kTogether / kRows,
          .steps = static_cast<int>(ceil_div(k, Config::bk)),
          .next_w = shared_w ? 0 : 1};
}

// Of d, whose values are of 16 bits.
template <class Config, class Args>
MappedTensor map_of_groups(const Args& p, Dtype dtype) {
  constexpr int kLines = Config::Plan::box_lines;
  if constexpr (Config::along_k) {
    return {.data = p.d,
            .type = tensor_map_type(dtype),
            .rank = 3,
            .sizes = {p.groups.count, p.m, p.n},
            .strides = {p.m * p.n, p.n},
            .box = {1, kLines, 64}};
  } else {
    return map_of_rows(p.d, dtype, p.m, p.n, p.n, kLines);
  }
}

template <class Config>
LaunchConfig grouped_launch(const GroupedWork& work, int sm_count) {
  const int64_t tiles = Config::along_k ? work.groups.count * work.down * work.across
                                        : (work.down + work.groups.count) * work.across;  // at most
  return {.grid = static_cast<unsigned>(std::min<int64_t>(sm_count, tiles)),
          .block = Config::threads,
          .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared)),
          .early = true};
}

}  // namespace warpsmith
