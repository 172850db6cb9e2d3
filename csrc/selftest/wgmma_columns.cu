// device/ptx/wgmma.h: every number of columns, of operands of 16 bits and of TF32. Of bytes: wgmma_columns_of_bytes.cu.
// Passes without running but on sm_90.
#include "selftest/wgmma.cuh"

namespace warpsmith::selftest {
namespace {

std::string run() {
  if (device_info(current_device()).sm != kSm) return "";
  return first_failure([] { return check_columns<WgmmaKind<bf16>>("bf16"); },
                       [] { return check_columns<WgmmaKind<f16>>("f16"); },
                       [] { return check_columns<WgmmaKind<f16, f16, f16>>("f16 in f16"); },
                       [] { return check_columns<WgmmaKind<Tf32Operand>>("tf32"); });
}

const SelfTestEntry entered{"wgmma_columns", run};

}  // namespace
}  // namespace warpsmith::selftest
