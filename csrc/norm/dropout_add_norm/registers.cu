// Residual norms with dropout, the row held in registers.
//   Against `pack`: a row costs two reads and two writes, as in `registers` of add_norm. No mask is written: the backward
//   pass computes it again. The generator wants registers too, so fewer blocks share a multiprocessor. Bound: DRAM and, at
//   16 bits, the generator.
#include "norm/add_norm/registers.cuh"
#include "norm/dropout_add_norm/row.cuh"

namespace warpsmith {
namespace {

using Tiles = std::tuple<AddNormTile<128, 8, 1, 10>, AddNormTile<128, 32, 2, 8>, AddNormTile<128, 0, 2, 8>,
                         AddNormTile<512, 0, 2, 2>, AddNormTile<512, 0, 4, 1>, AddNormTile<512, 0, 8, 1>>;

const char* takes(const DropoutAddNormArgs& a) { return needs_registers(a); }

void launch(const DropoutAddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_registers<Tiles>(DropoutAddNormRows<Types>(a), stream); });
}

const Register<DropoutAddNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
