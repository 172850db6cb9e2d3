// device/ptx/convert.h: every exponent with mantissas beside and at halves, either sign, NaN and infinities. Passes
// without running below sm_90, which has no such instruction.
#include "device/ptx/convert.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256, kLeastSm = 90;
constexpr uint32_t kInfinity = 0x7f800000u, kBelowTf32 = 0x1fffu;

__global__ void round_tf32_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from,
                                  [[maybe_unused]] int size) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  for (int i = threadIdx.x; i < size; i += blockDim.x) to[i] = ptx::tf32_from_float_even(__uint_as_float(from[i]));
#endif
}

std::string run() {
  if (device_info(current_device()).sm < kLeastSm) return "";
  Random random(1);
  std::vector<uint32_t> values;
  for (uint32_t sign_exponent = 0; sign_exponent < 512; ++sign_exponent) {
    const uint32_t mantissa = random.word() >> 9 & ~kBelowTf32;
    for (const uint32_t kept : {0u, mantissa, mantissa ^ 0x2000u, 0x7fe000u}) {
      for (const uint32_t below : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
        values.push_back(sign_exponent << 23 | kept | below);
      }
    }
  }
  DeviceArray<uint32_t> from(values), to(values.size());
  warpsmith::launch<&round_tf32_kernel>({1, kThreads}, kStream, to.data(), from.data(),
                                        static_cast<int>(values.size()));
  // what tensor cores see
  std::vector<float> expected, got;
  for (const uint32_t x : values) {
    const bool finite = (x & kInfinity) != kInfinity, nan = !finite && (x & 0x007fffffu) != 0;
    const uint32_t rounded = (x + 0xfff + (x >> 13 & 1)) & ~kBelowTf32;
    expected.push_back(std::bit_cast<float>(finite ? rounded : nan ? 0x7fc00000u : x));
  }
  for (const uint32_t x : to.values()) got.push_back(std::bit_cast<float>(x & ~kBelowTf32));
  return compare("tf32_from_float_even", expected, got,
                 [&](size_t i) { return show(std::bit_cast<float>(values[i])); });
}

const SelfTestEntry entered{"round_tf32", run};

}  // namespace
}  // namespace warpsmith::selftest
