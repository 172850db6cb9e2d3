// Calls that autograd records without Python: `op.recorded_…`, the same as `op`, whose gradient is one call of another
// operator. Which one, with what, and what comes of it, is a plan that Python hands over (core/recorded_calls.py).
//
// This is the only code of ours that needs PyTorch's own C++ interface, which changes from version to version. So it is a
// library of its own, compiled for the PyTorch at hand, and everything works without it; a call just costs the host more.
//
// Subclasses of tensors, and modes, see the plain operator.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace warpsmith {
namespace {

using at::Tensor;
using c10::IValue;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

// A value is kKind times what it is from, and its place there, as core/recorded_calls.py writes them.
constexpr int64_t kKind = 1000;
enum class From : int64_t {
  argument,  // of the call
  output,    // of it
  gradient,  // of an output; zeros like `otherwise` where there is none
  needed,    // whether the gradient of an argument is wanted
  apart,     // whether the dtypes of an argument and of `otherwise` differ
};

struct Source {
  From kind;
  size_t at;
};

std::optional<Source> source(int64_t code) {
  if (code < 0) return std::nullopt;
  return Source{static_cast<From>(code / kKind), static_cast<size_t>(code % kKind)};
}

struct Plan {
  c10::OperatorHandle forward, gradient;
  c10::OperatorHandle differentiable;           // the gradient's operator where it may be differentiated in its turn
  std::vector<int64_t> takes, otherwise;        // by argument of `gradient`
  std::vector<int64_t> gives, gives_otherwise;  // by argument of `forward`: which output is its gradient
  std::vector<int64_t> passes;                  // the same where the first output has none: whose gradient it is
  std::vector<int64_t> constants;               // outputs that are no functions of the arguments
};

// Whether autograd records an output: a tensor that is there, and is no constant.
bool is_recorded(const Plan& plan, size_t i, const Tensor& output) {
  const auto& constants = plan.constants;
  return output.defined() && std::find(constants.begin(), constants.end(), static_cast<int64_t>(i)) == constants.end();
}

// That is there and has elements: an operator stands an empty tensor for one that it does not make.
bool is_there(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().numel() > 0;
}

Tensor tensor_of(const IValue& value) { return value.isTensor() ? value.toTensor() : Tensor(); }

// What a call keeps beside tensors; packed, in tuples alone, which compiled autograd can compare.
struct Kept {
  const Plan* plan;
  std::vector<int64_t> slots;    // of the arguments that are tensors
  std::vector<int64_t> outputs;  // that are there
  std::vector<int64_t> saved;    // by argument of the gradient's operator: which of the saved tensors; -1: none
  std::vector<IValue> values;    // the same, of what is no tensor

  IValue packed() && {
    const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(plan));
    return c10::ivalue::Tuple::create(
        {IValue(address), tuple(slots), tuple(outputs), tuple(saved), c10::ivalue::Tuple::create(std::move(values))});
  }

  static Kept of(const IValue& packed) {
    const auto& parts = packed.toTupleRef().elements();
    return {reinterpret_cast<const Plan*>(static_cast<intptr_t>(parts[0].toInt())), numbers(parts[1]),
            numbers(parts[2]), numbers(parts[3]), parts[4].toTupleRef().elements().vec()};
  }

 private:
  static IValue tuple(const std::vector<int64_t>& all) {
    return c10::ivalue::Tuple::create(std::vector<IValue>(all.begin(), all.end()));
  }

  static std::vector<int64_t> numbers(const IValue& packed) {
    std::vector<int64_t> all;
    for (const IValue& number : packed.toTupleRef().elements()) all.push_back(number.toInt());
    return all;
  }
};

// The values of a source that is not a gradient: of a call's arguments and outputs.
const IValue& valued(const Source& from, const Stack& arguments, const Stack& outputs) {
  return from.kind == From::output ? outputs[from.at] : arguments[from.at];
}

class Recorded : public torch::autograd::Function<Recorded> {
 public:
  static variable_list forward(AutogradContext* ctx, const Plan* plan, Stack* stack, at::TensorList tensors) {
    const size_t count = plan->forward.schema().arguments().size();
    const Stack arguments(stack->end() - static_cast<int64_t>(count), stack->end());
    {
      const at::AutoDispatchBelowAutograd below;
      plan->forward.callBoxed(stack);
    }
    const size_t made = plan->forward.schema().returns().size();
    const Stack outputs(stack->end() - static_cast<int64_t>(made), stack->end());
    Kept kept{.plan = plan,
              .slots = {},
              .outputs = {},
              .saved = std::vector<int64_t>(plan->takes.size(), -1),
              .values = std::vector<IValue>(plan->takes.size())};
    for (size_t i = 0; i < count; ++i) {
      if (tensor_of(arguments[i]).defined()) kept.slots.push_back(static_cast<int64_t>(i));
    }
    variable_list found, saved;
    for (size_t i = 0; i < made; ++i) {
      Tensor output = tensor_of(outputs[i]);
      if (!is_recorded(*plan, i, output)) continue;
      kept.outputs.push_back(static_cast<int64_t>(i));
      found.push_back(std::move(output));
    }
    const auto save = [&](const Tensor& tensor) {  // each once
      size_t at = 0;
      while (at < saved.size() && !saved[at].is_same(tensor)) ++at;
      if (at == saved.size()) saved.push_back(tensor);
      return static_cast<int64_t>(at);
    };
    for (size_t i = 0; i < plan->takes.size(); ++i) {
      const Source from = *source(plan->takes[i]);
      const std::optional<Source> otherwise = source(plan->otherwise[i]);
      if (from.kind == From::needed) continue;
      if (from.kind == From::gradient) {
        if (otherwise) kept.saved[i] = save(tensor_of(valued(*otherwise, arguments, outputs)));
      } else if (from.kind == From::apart) {
        const Tensor a = tensor_of(arguments[from.at]), b = tensor_of(valued(*otherwise, arguments, outputs));
        kept.values[i] = b.defined() && b.numel() > 0 && a.scalar_type() != b.scalar_type();
      } else {
        const IValue* value = &valued(from, arguments, outputs);
        if (otherwise && !is_there(*value)) value = &valued(*otherwise, arguments, outputs);
        if (value->isTensor()) {
          kept.saved[i] = save(value->toTensor());
        } else {
          kept.values[i] = *value;
        }
      }
    }
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);
    ctx->saved_data.emplace("kept", std::move(kept).packed());
    return found;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Kept kept = Kept::of(ctx->saved_data.at("kept"));
    const Plan& plan = *kept.plan;
    // one for each thing that apply() was given: the plan, the stack, the tensors
    variable_list found(2 + kept.slots.size());
    const auto gradient_of = [&](int64_t output) {
      for (size_t i = 0; i < kept.outputs.size(); ++i) {
        if (kept.outputs[i] == output) return grads[i];
      }
      return Tensor();
    };
    bool any = false;
    for (const Tensor& grad : grads) any |= grad.defined();
    if (!any) return found;
    const variable_list saved = ctx->get_saved_variables();
    if (!plan.passes.empty() && !gradient_of(0).defined()) {
      for (size_t i = 0; i < kept.slots.size(); ++i) {
        if (const int64_t output = plan.passes[kept.slots[i]]; output >= 0) found[2 + i] = gradient_of(output);
      }
      return found;
    }

    Stack stack;
    stack.reserve(plan.takes.size());
    for (size_t i = 0; i < plan.takes.size(); ++i) {
      const Source from = *source(plan.takes[i]);
      if (from.kind == From::gradient) {
        Tensor grad = gradient_of(static_cast<int64_t>(from.at));
        if (!grad.defined() && kept.saved[i] >= 0) grad = at::zeros_like(saved[kept.saved[i]]);
        stack.push_back(grad.defined() ? IValue(std::move(grad)) : IValue());
      } else if (from.kind == From::needed) {
        const auto slot = std::find(kept.slots.begin(), kept.slots.end(), static_cast<int64_t>(from.at));
        stack.emplace_back(slot != kept.slots.end() && ctx->needs_input_grad(slot - kept.slots.begin()));
      } else if (kept.saved[i] >= 0) {
        stack.emplace_back(saved[kept.saved[i]]);
      } else {
        stack.push_back(kept.values[i]);
      }
    }
    if (at::GradMode::is_enabled()) {
      plan.differentiable.callBoxed(&stack);
    } else {
      const at::AutoDispatchBelowAutograd below;
      plan.gradient.callBoxed(&stack);
    }
    for (size_t i = 0; i < kept.slots.size(); ++i) {
      const int64_t slot = kept.slots[i];
      const int64_t output = plan.gives[slot], other = plan.gives_otherwise[slot];
      if (output < 0) continue;
      found[2 + i] = tensor_of(stack[other >= 0 && !is_there(stack[output]) ? other : output]);
    }
    return found;
  }
};

// Of a plan that names what is not there nothing is recorded.
void check(const Plan& plan) {
  const std::string& name = plan.forward.schema().name();
  const auto arguments = static_cast<int64_t>(plan.forward.schema().arguments().size());
  const auto outputs = static_cast<int64_t>(plan.forward.schema().returns().size());
  const auto taken = plan.gradient.schema().arguments().size(), given = plan.gradient.schema().returns().size();
  const auto within = [&](const std::vector<int64_t>& all, int64_t end) {
    for (const int64_t at : all) TORCH_CHECK(at >= -1 && at < end, name, ": no output ", at);
  };
  const auto known = [&](const std::vector<int64_t>& codes, bool may_lack) {
    TORCH_CHECK(codes.size() == taken, name, ": ", taken, " arguments are taken, not ", codes.size());
    for (const int64_t code : codes) {
      const std::optional<Source> from = source(code);
      TORCH_CHECK(from || may_lack, name, ": an argument without a source");
      if (!from) continue;
      const bool of_output = from->kind == From::output || from->kind == From::gradient;
      TORCH_CHECK(from->kind <= From::apart && static_cast<int64_t>(from->at) < (of_output ? outputs : arguments), name,
                  ": no source ", code);
    }
  };
  known(plan.takes, false);
  known(plan.otherwise, true);
  for (const auto* columns : {&plan.gives, &plan.gives_otherwise}) {
    TORCH_CHECK(static_cast<int64_t>(columns->size()) == arguments, name, ": a gradient for each argument");
    within(*columns, static_cast<int64_t>(given));
  }
  TORCH_CHECK(plan.passes.empty() || static_cast<int64_t>(plan.passes.size()) == arguments, name);
  within(plan.passes, outputs);
  for (const int64_t at : plan.constants) TORCH_CHECK(at >= 0 && at < outputs, name, ": no output ", at);
}

class Recorder : public c10::OperatorKernel {
 public:
  explicit Recorder(Plan plan) : plan_(std::move(plan)) { check(plan_); }

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
    if (keys.has(c10::DispatchKey::Python)) return plan_.forward.callBoxed(stack);
    const size_t count = plan_.forward.schema().arguments().size();
    variable_list tensors;
    for (auto value = stack->end() - static_cast<int64_t>(count); value != stack->end(); ++value) {
      if (Tensor tensor = tensor_of(*value); tensor.defined()) tensors.push_back(std::move(tensor));
    }
    const Plan* plan = &plan_;
    const variable_list found = Recorded::apply(plan, stack, at::TensorList(tensors));
    size_t next = 0;  // the others are there already
    const size_t made = plan_.forward.schema().returns().size();
    for (size_t i = 0; i < made; ++i) {
      IValue& output = (*stack)[stack->size() - made + i];
      if (is_recorded(plan_, i, tensor_of(output))) output = found[next++];
    }
  }

 private:
  Plan plan_;
};

// Defines `name.overload`. `signature`: of `name`. Python calls it from one thread at a time.
void record(const std::string& name, const std::string& overload, const std::string& signature,
            const std::string& gradient, const std::string& differentiable, std::vector<int64_t> takes,
            std::vector<int64_t> otherwise, std::vector<int64_t> gives, std::vector<int64_t> gives_otherwise,
            std::vector<int64_t> passes, std::vector<int64_t> constants) {
  static auto* const libraries = new std::deque<torch::Library>;  // for ever: what they define goes with them
  const auto operation = [](const std::string& of) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(("warpsmith::" + of).c_str(), "");
  };
  auto recorder = std::make_unique<Recorder>(Plan{operation(name), operation(gradient), operation(differentiable),
                                                  std::move(takes), std::move(otherwise), std::move(gives),
                                                  std::move(gives_otherwise), std::move(passes), std::move(constants)});
  torch::Library& library =
      libraries->emplace_back(torch::Library::FRAGMENT, "warpsmith", std::nullopt, __FILE__, __LINE__);
  library.def((name + "." + overload + signature).c_str());
  library.impl((name + "." + overload).c_str(),
               torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(std::move(recorder))));
}

TORCH_LIBRARY_FRAGMENT(warpsmith, library) {
  library.def(
      "_record(str name, str overload, str signature, str gradient, str differentiable, int[] takes, "
      "int[] otherwise, int[] gives, int[] gives_otherwise, int[] passes, int[] constants) -> ()",
      &record);
}

}  // namespace
}  // namespace warpsmith
