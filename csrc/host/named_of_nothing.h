// Calls that have a result and nothing to compute it from, the product of no columns, say: a binding fills it in, without a
// kernel. A rung that such a call names may be too new for the GPU all the same, as that of any other call.
#pragma once

#include "host/serve.h"

namespace warpsmith {

// `like`: a tensor of the call, on its GPU.
template <class Args>
void check_named_of_nothing(const Call& call, const Tensor& like) {
  if (call.named == nullptr) return;
  const int sm = device_info(like.get_device_index()).sm;
  const Rung<Args>* rung = Ladder<Args>::find(call.named->rung);
  if (rung == nullptr || sm < rung->min_sm) Ladder<Args>::named(call.op, call.named->rung, Args{}, sm);  // says so
}

}  // namespace warpsmith
