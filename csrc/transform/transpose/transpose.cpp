// transpose and permute: checks, what the dimensions come to, allocation, the choice of the rung.
#include "transform/transpose/transpose.h"

#include <optional>
#include <vector>

#include "host/serve.h"

namespace warpsmith {
namespace {

const Ladder<TransposeArgs> ladder{"transpose"};

// A dimension of the result: how many, and how far apart they lie in x and in the result.
struct MovedDim {
  int64_t size, x, y;
};

// The dimensions of the result without those of size 1, neighbours merged that x walks as one; contiguous.
std::vector<MovedDim> merged(const Tensor& x, const std::vector<int64_t>& order) {
  std::vector<MovedDim> dims;
  for (const int64_t d : order) {
    const int64_t size = x.size(d), stride = x.stride(d);
    if (size == 1) continue;
    if (!dims.empty() && dims.back().x == size * stride) {
      dims.back().size *= size;
      dims.back().x = stride;
    } else {
      dims.push_back({size, stride, 0});
    }
  }
  int64_t stride = 1;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    dim->y = stride;
    stride *= dim->size;
  }
  return dims;
}

// Which of the dimensions is that of the columns: the one along which x is contiguous, or closest to it; of several the
// last, and of a copy the last.
size_t columns_of(const std::vector<MovedDim>& dims, bool is_copy) {
  size_t best = dims.size() - 1;
  if (is_copy) return best;
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d].x == 1) return d;
    if (dims[d].x < dims[best].x) best = d;
  }
  return best;
}

// y: contiguous, the dimensions of x in `order`.
TransposeArgs arguments(const Tensor& x, const Tensor& y, const std::vector<int64_t>& order) {
  TransposeArgs a{
      .x = x.data_ptr(),
      .y = y.data_ptr(),
      .rows = 1,
      .cols = 1,
      .x_row = 1,
      .x_col = 1,
      .y_col = 1,
      .count = 1,
      .batch = {},
      .batch_rank = 0,
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  std::vector<MovedDim> dims = merged(x, order);
  if (dims.empty()) return a;
  a.rows = dims.back().size;
  a.x_row = dims.back().x;
  a.y_col = a.rows;
  dims.pop_back();
  if (dims.empty()) return a;
  const size_t at = columns_of(dims, a.x_row == 1);
  a.cols = dims[at].size;
  a.x_col = dims[at].x;
  a.y_col = dims[at].y;
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(at));
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    a.count *= dim->size;
    ++a.batch_rank;
    if (a.batch.rank == kMostBatchDims) continue;
    a.batch.sizes[a.batch.rank] = FastDivide(static_cast<uint64_t>(dim->size));
    a.batch.x[a.batch.rank] = dim->x;
    a.batch.y[a.batch.rank] = dim->y;
    ++a.batch.rank;
  }
  return a;
}

std::optional<Tensor> moved(const Call& call, const Tensor& x, const std::vector<int64_t>& order) {
  if (!has_kernel(call, x, kernel_dtype(x.scalar_type()).has_value())) return std::nullopt;
  std::vector<int64_t> shape;
  for (const int64_t d : order) shape.push_back(x.size(d));
  Tensor y = empty_contiguous(x, Sizes(shape.data(), shape.size()), x.scalar_type());
  if (y.numel() == 0) return y;
  return serve(call, arguments(x, y, order), x) ? std::optional(y) : std::nullopt;
}

std::optional<Tensor> transpose(const Call& call, const Tensor& x) {
  const int64_t rank = x.dim();
  if (rank < 2) fail(call.op, "expected at least 2 dimensions in x, got shape ", shape_text(x.sizes()));
  std::vector<int64_t> order;
  for (int64_t d = 0; d < rank - 2; ++d) order.push_back(d);
  order.push_back(rank - 1);
  order.push_back(rank - 2);
  return moved(call, x, order);
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

std::optional<Tensor> permute(const Call& call, const Tensor& x, std::vector<int64_t> dims) {
  const int64_t rank = x.dim();
  std::vector<bool> seen(static_cast<size_t>(rank));
  bool valid = static_cast<int64_t>(dims.size()) == rank;
  std::vector<int64_t> order = dims;
  for (int64_t& d : order) {
    if (d < 0) d += rank;
    valid = valid && d >= 0 && d < rank && !seen[static_cast<size_t>(d)];
    if (valid) seen[static_cast<size_t>(d)] = true;
  }
  if (!valid) {
    fail(call.op, "expected dims to name each of the ", std::to_string(rank), " dimensions of x once, got ",
         dims_text(dims));
  }
  return moved(call, x, order);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&transpose>(m, "transpose");
  bind<&permute>(m, "permute");
}

}  // namespace
}  // namespace warpsmith
