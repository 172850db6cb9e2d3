// Sums of the rows of wgmma's first operand beside a product: the gradient of a bias, in the pass of that of the weight. A
// matrix of ones, eight columns wide, is multiplied as one more operand, in the same group as the products of a stage.
#pragma once

#include "gemm/wgmma_tile.cuh"

namespace warpsmith {

// Behind the sums of the product, four of a thread for each strip: each row's, in every column.
template <class Config>
struct WithRowSums : Config {
  using Ones = WgmmaOperand<Major::k, 8, Config::bk, sizeof(typename Config::T)>;
  using OnesKind = WgmmaKind<typename Config::T, typename Config::T, float, Config::a_major, Major::k>;
  static constexpr int product = Config::bn / 2;  // sums
  using Sums = float[Config::strips][product + 4];
};

#if WARPSMITH_HAS_WGMMA

template <class Config>
class WgmmaReader<WithRowSums<Config>> {
  using With = WithRowSums<Config>;
  using A = typename Config::A;
  using B = typename Config::B;
  using Stage = typename Config::Stage;
  using Product = float[With::product];
  using Rows = float[4];

 public:
  __device__ __forceinline__ WgmmaReader(const Stage* ring, int warpgroup, const void* ones)
      : a_(A::descriptor(ptx::shared_address(ring->a)).at(warpgroup * A::offset(Config::rows, 0))),
        b_(B::descriptor(ptx::shared_address(ring->b))),
        ones_(With::Ones::descriptor(ptx::shared_address(ones))) {}

  __device__ __forceinline__ void multiply(typename With::Sums& sums, int slot, bool adds) const {
    const MatrixDescriptor a = a_.at(slot * static_cast<int>(sizeof(Stage)));
    const MatrixDescriptor b = b_.at(slot * static_cast<int>(sizeof(Stage)));
#pragma unroll
    for (int k = 0; k < Config::bk; k += Config::Kind::k) {
#pragma unroll
      for (int i = 0; i < Config::strips; ++i) {
        const uint64_t of_a = a.at(A::offset(i * kWgmmaRows, k)).bits();
        ptx::wgmma<typename Config::Kind>(reinterpret_cast<Product&>(sums[i][0]), of_a, b.at(B::offset(0, k)).bits(),
                                          adds || k > 0);
        ptx::wgmma<typename With::OnesKind>(reinterpret_cast<Rows&>(sums[i][With::product]), of_a, ones_.bits(),
                                            adds || k > 0);
      }
    }
  }

 private:
  MatrixDescriptor a_, b_, ones_;
};

#endif

}  // namespace warpsmith
