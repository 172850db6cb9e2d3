// What nearly all bindings include, in one, so that it is compiled once.
#pragma once

#include "emulator.h"
//
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
