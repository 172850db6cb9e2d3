// How images lie in memory, and the arguments that both directions share.
#pragma once

#include <vector>

#include "host/serve.h"
#include "vision/upsample_nearest2d/upsample_nearest2d.h"

namespace warpsmith {

// Channels are neighbours and nothing lies between them; what is contiguous too passes for that.
inline bool has_channels_last(const Tensor& x) {
  if (x.dim() != 4 || x.is_contiguous()) return false;
  const int64_t c = x.size(1), h = x.size(2), w = x.size(3);
  const int64_t wanted[] = {c * h * w, 1, w * c, c};
  for (int d = 0; d < 4; ++d) {
    if (x.size(d) != 1 && x.stride(d) != wanted[d]) return false;
  }
  return true;
}

// Of the same format, uninitialised.
inline Tensor empty_image(const Tensor& like, int64_t h, int64_t w) {
  const int64_t n = like.size(0), c = like.size(1);
  const int64_t sizes[] = {n, c, h, w};
  if (!has_channels_last(like)) return empty_contiguous(like, Sizes(sizes, 4), like.scalar_type());
  const int64_t strides[] = {c * h * w, 1, w * c, c};
  return empty_strided(like, Sizes(sizes, 4), Sizes(strides, 4), like.scalar_type());
}

inline void check_sizes(std::string_view op, std::string_view name, const std::vector<int64_t>& sizes) {
  if (sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0) return;
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  fail(op, "expected ", name, " to be a height and a width of at least 1, got ", text, "]");
}

inline void check_images(std::string_view op, std::string_view name, const Tensor& x) {
  if (x.dim() != 4 || x.size(2) == 0 || x.size(3) == 0) {
    fail(op, "expected ", name, " to have shape (n, c, h, w) with pixels, got ", shape_text(x.sizes()));
  }
}

// Rows or columns of x for one of the result: in float, as PyTorch computes it. A side that keeps its size is copied,
// whatever the factor.
inline float upsample_scale(double factor, int64_t size, int64_t out_size) {
  if (size == out_size) return 1.0f;
  return factor > 0.0 ? static_cast<float>(1.0 / factor) : static_cast<float>(size) / static_cast<float>(out_size);
}

}  // namespace warpsmith
