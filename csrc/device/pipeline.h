// Which slot of a ring of buffers in shared memory a step of a loop uses.
#pragma once

namespace warpsmith {

// Walks the slots in turn without dividing by `stages`; `phase` flips each time around, as the parity of an mbarrier.
template <int stages_>
struct RingSlot {
  static constexpr int stages = stages_;
  static_assert(stages > 0, "a ring has slots");
  int slot = 0;
  int phase = 0;

  __host__ __device__ constexpr void advance() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

}  // namespace warpsmith
