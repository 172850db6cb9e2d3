// Boxes, and whether two overlap too much: rounded as on a CPU, without fused products.
#pragma once

#include "vision/nms/nms.h"

namespace warpsmith {

struct Box {
  float x1, y1, x2, y2;
  float area;
  int64_t label;  // of its class
  bool exists;
};

// Box number `rank` in the order. An order that names a box that there is not suppresses it: nothing is read.
__device__ __forceinline__ Box load_box(const NmsArgs& a, int64_t rank) {
  const int64_t at = a.order[rank];
  Box box{};
  box.exists = at >= 0 && at < a.n;
  if (!box.exists) return box;
  const float* from = a.boxes + 4 * at;
  box.x1 = from[0];
  box.y1 = from[1];
  box.x2 = from[2];
  box.y2 = from[3];
  box.area = __fmul_rn(box.x2 - box.x1, box.y2 - box.y1);
  box.label = a.classes != nullptr ? a.classes[at] : 0;
  return box;
}

// Intersection over union > threshold; NaN is not. Boxes that do not meet, which are most, are not divided.
__device__ __forceinline__ bool overlap(const Box& a, const Box& b, float threshold) {
  const float left = a.x1 < b.x1 ? b.x1 : a.x1, right = a.x2 < b.x2 ? a.x2 : b.x2;
  const float top = a.y1 < b.y1 ? b.y1 : a.y1, bottom = a.y2 < b.y2 ? a.y2 : b.y2;
  const float width = right - left < 0.0f ? 0.0f : right - left, height = bottom - top < 0.0f ? 0.0f : bottom - top;
  const float shared = __fmul_rn(width, height);
  if (shared == 0.0f && threshold >= 0.0f) return false;
  return a.label == b.label && shared / (a.area + b.area - shared) > threshold;
}

}  // namespace warpsmith
