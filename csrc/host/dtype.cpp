#include "host/dtype.h"

#include <stdexcept>
#include <string>

namespace warpsmith {

void no_kernel_for(Dtype dtype) { throw std::invalid_argument(std::string("no kernel for dtype ") + name_of(dtype)); }

}  // namespace warpsmith
