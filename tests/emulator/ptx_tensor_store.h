// device/ptx/tensor_store.h without PTX.
#pragma once

#include "background.h"
#include "ptx.h"

namespace emu {

template <class T>
void add_value(const TensorMap&, char* to, const char* from) {
  T a, b;
  std::memcpy(&a, to, sizeof(a));
  std::memcpy(&b, from, sizeof(b));
  a = T(static_cast<float>(a) + static_cast<float>(b));
  std::memcpy(to, &a, sizeof(a));
}

// What numbers a map is of is noted behind all that copies read of it (__init__.py).
inline CUtensorMapDataType type_of(const CUtensorMap* map) {
  CUtensorMapDataType type;
  std::memcpy(&type, reinterpret_cast<const char*>(map) + sizeof(TensorMap), sizeof(type));
  return type;
}

// A box of shared memory to where `corner` says, `put` value by value; nothing outside the tensor, but the rest of 16 bytes
// that begin in it. Loads may begin before it, stores may not: CUDA C++ Programming Guide, "Negative indices and out of
// bounds".
inline void store_box(const CUtensorMap* to, int rank, const Corner& corner, const void* shared,
                      void (*put)(const TensorMap& map, char* to, const char* from)) {
  const TensorMap map = read_map(to);
  const uint32_t start = shared_offset(shared);
  if (map.rank != rank) fail("a box of another rank than its tensor map");
  if (start % 128 != 0 || start % std::max(8 * map.line, 1) != 0) fail("misaligned: a box of a tensor map");
  if (map.line != 0 && map.box_line() != map.line) fail("a swizzled box whose rows are no whole lines");
  if (corner[0] * map.size % 16 != 0) fail("a box that begins at no multiple of 16 bytes");
  for (int d = 0; d < rank; ++d) {
    if (corner[d] < 0) fail("a box stored from before its tensor on: an illegal instruction");
  }
  check_begins_in_memory(map, corner);
  run_store_later([=] {
    const uint32_t mask = map.line == 0 ? 0 : map.line / 16 - 1;
    for (int line = 0; line < map.box_lines(); ++line) {
      Corner place = corner;
      for (int d = 1, left = line; d < map.rank; left /= map.box[d++]) place[d] += left % map.box[d];
      for (int c = 0; c < map.box_line(); c += map.size) {
        place[0] = corner[0] + c / map.size;
        char* at = const_cast<char*>(map.data) + place[0] * map.size;
        bool inside = place[0] / (16 / map.size) * (16 / map.size) < map.sizes[0];
        for (int d = 1; d < map.rank; ++d) {
          inside = inside && place[d] < map.sizes[d];
          at += place[d] * map.pitches[d - 1];
        }
        if (!inside) continue;
        const uint32_t from = start + line * map.box_line() + c;
        char value[8];
        read_async(from ^ (from / 128 & mask) * 16, value, map.size);
        put(map, at, value);
      }
    }
  });
}

}  // namespace emu

namespace warpsmith::ptx {

template <int rank>
void tensor_store(const CUtensorMap* map, const int (&corner)[rank], const void* shared) {
  emu::store_box(map, rank, innermost_first(corner), shared,
                 [](const emu::TensorMap& made, char* to, const char* from) { std::memcpy(to, from, made.size); });
}

template <int rank>
void tensor_add(const CUtensorMap* map, const int (&corner)[rank], const void* shared) {
  const auto add = [&](auto* put) { emu::store_box(map, rank, innermost_first(corner), shared, put); };
  switch (emu::type_of(map)) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return add(&emu::add_value<float>);
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return add(&emu::add_value<f16>);
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return add(&emu::add_value<bf16>);
    default:
      emu::fail("tensor_add of other values than f32, f16 and bf16: not emulated");
  }
}

inline void stores_commit() { emu::commit_stores(); }
template <int pending>
void stores_wait_read() {
  emu::wait_stores(pending);
}
template <int pending>
void stores_wait() {
  emu::wait_stores(pending);
}

inline void tensor_load(void* shared, const CUtensorMap* map, const int (&corner)[2], uint64_t* barrier, uint64_t) {
  tensor_load(shared, map, corner, barrier);
}
inline void tensor_load_multicast(void* shared, const CUtensorMap* map, const int (&corner)[2], uint64_t* barrier,
                                  uint16_t blocks, uint64_t) {
  tensor_load_multicast(shared, map, corner, barrier, blocks);
}

}  // namespace warpsmith::ptx
