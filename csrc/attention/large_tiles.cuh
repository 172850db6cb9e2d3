// Tiles of attention past head dimensions of 256, and the GPUs that are given them.
#pragma once

#include "attention/climb.h"
#include "attention/compiled_sm.h"
#include "attention/key_warps.cuh"

namespace warpsmith {

// 64 queries hold 128 or 80 registers of sums a thread, 32 queries of longer heads as many. Slices of 16 to 32 KB: as
// few barriers as shared memory allows, with two or more of them under way.
struct LargeHeads {
  static constexpr int warps = 8, qm = 2;
  static constexpr float slack = 8.0f;
  static constexpr bool pair = false;
  template <int lines, int length>
  using Layout = Swizzled<lines, length>;
};

template <int d_, int bm_, int bk_, int bv_, int stages_>
struct RoomyTile : LargeHeads {
  static constexpr int d = d_, bm = bm_, bn = 128, bk = bk_, bv = bv_, stages = stages_;
};

template <int d_, int bm_, int bk_, int stages_>
struct LittleTile : LargeHeads {
  static constexpr int d = d_, bm = bm_, bn = 64, bk = bk_, bv = 16, stages = stages_;
};

// There is none for 1024 in little room.
template <Room room, int d>
struct LargeTile;

template <>
struct LargeTile<Room::large, 320> : RoomyTile<320, 64, 64, 64, 4> {};
template <>
struct LargeTile<Room::large, 384> : RoomyTile<384, 64, 128, 32, 4> {};
template <>
struct LargeTile<Room::large, 512> : RoomyTile<512, 64, 128, 32, 3> {};
template <>
struct LargeTile<Room::large, 640> : RoomyTile<640, 32, 128, 16, 4> {};
template <>
struct LargeTile<Room::large, 768> : RoomyTile<768, 32, 128, 16, 4> {};
template <>
struct LargeTile<Room::large, 1024> : RoomyTile<1024, 32, 128, 16, 3> {};

template <>
struct LargeTile<Room::medium, 320> : RoomyTile<320, 64, 64, 32, 4> {};
template <>
struct LargeTile<Room::medium, 384> : RoomyTile<384, 64, 128, 32, 3> {};
template <>
struct LargeTile<Room::medium, 512> : RoomyTile<512, 64, 128, 32, 2> {};
template <>
struct LargeTile<Room::medium, 640> : RoomyTile<640, 32, 128, 16, 3> {};
template <>
struct LargeTile<Room::medium, 768> : RoomyTile<768, 32, 128, 16, 3> {};
template <>
struct LargeTile<Room::medium, 1024> : RoomyTile<1024, 32, 128, 16, 2> {};

// The last has one stage: its q alone takes 48 KB.
template <>
struct LargeTile<Room::little, 320> : LittleTile<320, 64, 64, 3> {};
template <>
struct LargeTile<Room::little, 384> : LittleTile<384, 64, 128, 2> {};
template <>
struct LargeTile<Room::little, 512> : LittleTile<512, 32, 128, 3> {};
template <>
struct LargeTile<Room::little, 640> : LittleTile<640, 32, 128, 2> {};
template <>
struct LargeTile<Room::little, 768> : LittleTile<768, 32, 128, 1> {};

constexpr int most_shared(Room room) {
  return room == Room::large ? kSharedOfSm90 : (room == Room::medium ? kSharedOfSm80 : kSharedOfSm89);
}

template <Room room, int d>
struct LargeConfig : KeyWarps<LargeTile<room, d>> {
  static_assert(LargeConfig::bytes <= most_shared(room), "every GPU that the tile is for has room for it");
};

template <int d>
constexpr bool kMayBeLarge = d <= 768 || kCompiledRoom != Room::little;

// The kernel for heads of up to `d`, by the tile for the GPU that it was compiled for. `room`: that whose tile the host
// chose the grid by.
template <int d, class T, class Scores, class Values>
__device__ __forceinline__ void attend_large(const AttentionArgs& a, Room room) {
  if constexpr (kMayBeLarge<d>) {
    extern __shared__ __align__(128) uint4 memory[];
    if (room != kCompiledRoom) __trap();  // code for another GPU, which happens to run on this one
    attend_together<T, Scores, Values, LargeConfig<kCompiledRoom, d>>(a, memory);
  }
}

// Half of a head of `d_` for each of two blocks.
template <int d_>
struct PairTile : RoomyTile<d_ / 2, 64, d_ == 640 ? 64 : 128, 32, 3> {
  static constexpr bool pair = true;
};

template <int d_>
struct PairConfig : KeyWarps<PairTile<d_>> {
  static_assert(PairConfig::bytes <= kSharedOfSm90);
};

// Calls body.template operator()<d>() for the head dimension of the call, with how to launch its tile.
template <class Body>
void visit_large_heads(const AttentionArgs& a, Body&& body) {
  const Room room = room_of(device_info(current_device()).sm);
  visit_head_tiles<320, 384, 512, 640, 768, 1024>(a, [&]<int d>() {
    const auto run = [&]<class C>() {
      body.template operator()<d>(LaunchConfig{query_grid(a, C::bm), C::threads, C::bytes}, room);
    };
    if (room == Room::large) return run.template operator()<LargeConfig<Room::large, d>>();
    if (room == Room::medium) return run.template operator()<LargeConfig<Room::medium, d>>();
    if constexpr (d <= 768) run.template operator()<LargeConfig<Room::little, d>>();
  });
}

inline const char* needs_room_for_large_heads(const AttentionArgs& a) {
  const bool little = (a.d > 768 || a.dv > 768) && room_of(device_info(current_device()).sm) == Room::little;
  return little ? "needs more than 99 KB of shared memory in a block" : nullptr;
}

inline const char* takes_large_heads(const AttentionArgs& a) {
  return unmet({takes_heads<1024>(a), needs_room_for_large_heads(a)});
}

}  // namespace warpsmith
