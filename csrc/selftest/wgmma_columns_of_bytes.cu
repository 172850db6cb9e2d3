// device/ptx/wgmma.h: every number of columns, of fp8 and of s8. Of wider operands: wgmma_columns.cu. Passes without
// running but on sm_90.
#include "selftest/wgmma.cuh"

namespace warpsmith::selftest {
namespace {

std::string run() {
  if (device_info(current_device()).sm != kSm) return "";
  return first_failure([] { return check_columns<WgmmaKind<e4m3>>("e4m3"); },
                       [] { return check_columns<WgmmaKind<e5m2>>("e5m2"); },
                       [] { return check_columns<WgmmaKind<int8_t, int8_t, int32_t>>("s8"); });
}

const SelfTestEntry entered{"wgmma_columns_of_bytes", run};

}  // namespace
}  // namespace warpsmith::selftest
