#include "refurbish_tf/cc/kernels/inline_function.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "refurbish_tf/cc/kernels/op_lists.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "tensorflow/core/framework/dataset_options.pb.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/util/work_sharder.h"

namespace refurbish_tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::FunctionLibraryDefinition;

constexpr char kLower[] = "_lower_using_switch_merge";

bool HasReferences(const NodeDef& node) {
  const tensorflow::OpDef* op;
  if (!tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok()) {
    return false;  // A function.
  }
  for (const auto& output : op->output_arg()) {
    if (output.is_ref()) return true;
  }
  return false;
}

bool IsRejection(const absl::Status& status) {
  return !status.ok() && absl::StrContains(status.message(),
                                           "Single-threaded executor does not");
}

// The most threads of one operation, or 0 for any. Calls that run at once share
// the CPU cores. If an operation split its work, it would wake threads that
// find no free core: with photographs, that took a third more CPU time.
int MaxParallelism(IteratorContext* ctx, int num_calls) {
  const tensorflow::data::Options* options = ctx->options();
  if (options == nullptr ||
      options->threading_options().optional_max_intra_op_parallelism_case() !=
          tensorflow::data::ThreadingOptions::kMaxIntraOpParallelism) {
    if (num_calls == 0) return 0;
    return std::max(1, tensorflow::port::MaxParallelism() / num_calls);
  }
  const int most = options->threading_options().max_intra_op_parallelism();
  return most > 0 ? most : tensorflow::port::MaxParallelism();
}

// Copies `ctx`. If `runner` is empty, the copy has the runner of `ctx`.
IteratorContext WithRunner(
    IteratorContext* ctx, CancellationManager* manager,
    const std::function<void(std::function<void()>)>& runner) {
  IteratorContext::Params params(ctx);
  params.cancellation_manager = manager;
  // A call of a function does not advance the input.
  params.symbolic_checkpoint = false;
  if (runner != nullptr) params.runner = runner;
  return IteratorContext(std::move(params));
}

void RunAtOnce(std::function<void()> closure) { closure(); }

}  // namespace

absl::Status InlineFunctionMetadata::Create(
    OpKernelConstruction* ctx, NameAttrList function,
    std::shared_ptr<const InlineFunctionMetadata>* metadata) {
  auto created = std::make_shared<InlineFunctionMetadata>();
  FunctionMetadata::Params params;
  TF_RETURN_IF_ERROR(FunctionMetadata::Create(ctx, NameAttrList(function),
                                              params, &created->as_traced_));
  params.use_inter_op_parallelism = false;
  TF_RETURN_IF_ERROR(FunctionMetadata::Create(ctx, std::move(function), params,
                                              &created->for_inline_));
  // No other object uses this library, so it can be changed.
  auto* const library =
      const_cast<FunctionLibraryDefinition*>(created->for_inline_->lib_def());
  for (const std::string& name : library->ListFunctionNames()) {
    FunctionDef definition = *library->Find(name);
    bool changed = false;
    for (NodeDef& node : *definition.mutable_node_def()) {
      created->is_inline_ &=
          !NeedsDefaultExecutor(node.op()) && !HasReferences(node);
      created->calls_python_ |= CallsPython(node.op());
      const auto lower = node.mutable_attr()->find(kLower);
      if (lower == node.mutable_attr()->end() || !lower->second.b()) continue;
      lower->second.set_b(false);
      changed = true;
    }
    if (changed) {
      TF_RETURN_IF_ERROR(library->ReplaceFunction(name, definition));
    }
  }
  const std::string& name = created->for_inline_->func().name();
  if (const FunctionDef* const whole = library->Find(name); whole != nullptr) {
    std::optional<FunctionDef> rest;
    created->layers_ = LayersFunction::Of(*whole, &rest);
    created->layers_are_all_ = !rest.has_value();
    if (rest.has_value()) {
      TF_RETURN_IF_ERROR(library->ReplaceFunction(name, *rest));
    }
  }
  *metadata = std::move(created);
  return absl::OkStatus();
}

absl::Status CheckResultTypes(const OpKernelConstruction* ctx, const char* name,
                              const std::string& function,
                              const DataTypeVector& types, size_t num_shapes) {
  const FunctionDef* const definition =
      ctx->function_library()->GetFunctionLibraryDefinition()->Find(function);
  DataTypeVector returned;
  if (definition != nullptr) {
    for (const auto& output : definition->signature().output_arg()) {
      returned.push_back(output.type());
    }
  }
  if (returned == types && num_shapes == types.size()) return absl::OkStatus();
  return InvalidArgument(name, " returns components of ",
                         tensorflow::DataTypeVectorString(returned),
                         ", but the dataset has ",
                         tensorflow::DataTypeVectorString(types), " and ",
                         num_shapes, " shapes. Both must be the same.");
}

FunctionContexts::FunctionContexts(IteratorContext* ctx,
                                   CancellationManager* manager, int num_calls)
    : usual(WithRunner(ctx, manager, nullptr)),
      runs_inline(WithRunner(ctx, manager, RunAtOnce)),
      max_parallelism(MaxParallelism(ctx, num_calls)) {}

absl::Status InlineFunction::Create(
    OpKernelContext* ctx,
    std::shared_ptr<const InlineFunctionMetadata> metadata,
    const std::string& arguments, std::unique_ptr<InlineFunction>* function) {
  auto created = std::make_unique<InlineFunction>();
  TF_RETURN_IF_ERROR(CapturedFunction::Create(ctx, metadata->as_traced_,
                                              arguments, &created->as_traced_));
  TF_RETURN_IF_ERROR(CapturedFunction::Create(
      ctx, metadata->for_inline_, arguments, &created->for_inline_));
  created->metadata_ = std::move(metadata);
  *function = std::move(created);
  return absl::OkStatus();
}

absl::Status InlineFunction::Instantiate(
    IteratorContext* ctx,
    std::unique_ptr<InstantiatedInlineFunction>* function) const {
  auto created = std::make_unique<InstantiatedInlineFunction>();
  created->as_traced_ = as_traced_.get();
  created->metadata_ = metadata_.get();
  if (metadata_->is_inline() &&
      !for_inline_->Instantiate(ctx, &created->inline_).ok()) {
    created->inline_ = nullptr;
  }
  if (created->inline_ == nullptr) TF_RETURN_IF_ERROR(created->FallBack(ctx));
  *function = std::move(created);
  return absl::OkStatus();
}

// Called only when needed: instantiating takes as long as a thousand calls.
absl::Status InstantiatedInlineFunction::FallBack(IteratorContext* ctx) {
  absl::MutexLock lock(&mu_);
  if (fell_back_) return absl::OkStatus();
  TF_RETURN_IF_ERROR(as_traced_->Instantiate(ctx, &usual_));
  fell_back_ = true;
  return absl::OkStatus();
}

absl::Status InstantiatedInlineFunction::Run(FunctionContexts* contexts,
                                             std::vector<Tensor> arguments,
                                             std::vector<Tensor>* results) {
  const LayersFunction* layers;
  TF_RETURN_IF_ERROR(RunUpToLayers(contexts, &arguments, &layers));
  if (layers != nullptr) {
    return layers->Run(std::move(arguments), /*seed=*/nullptr, results);
  }
  *results = std::move(arguments);
  return absl::OkStatus();
}

absl::Status InstantiatedInlineFunction::RunInto(FunctionContexts* contexts,
                                                 std::vector<Tensor> arguments,
                                                 const BatchRows& rows,
                                                 const BatchRows::Row& row) {
  const LayersFunction* layers;
  TF_RETURN_IF_ERROR(RunUpToLayers(contexts, &arguments, &layers));
  if (layers != nullptr) {
    return layers->RunInto(arguments, /*seed=*/nullptr, rows, row);
  }
  TF_RETURN_IF_ERROR(rows.Check(arguments));
  return BatchRows::Write(arguments, row);
}

absl::Status InstantiatedInlineFunction::RunUpToLayers(
    FunctionContexts* contexts, std::vector<Tensor>* values,
    const LayersFunction** layers) {
  *layers = LayersFor(*values);
  if (*layers != nullptr) return absl::OkStatus();
  std::optional<tensorflow::ScopedPerThreadMaxParallelism> limit;
  if (contexts->max_parallelism > 0) limit.emplace(contexts->max_parallelism);
  std::vector<Tensor> arguments = std::move(*values);
  values->clear();
  if (metadata_->calls_python()) CopyHeldByOthers(&arguments);
  absl::Status status;
  bool fell_back = fell_back_;
  if (!fell_back && accepted_) {
    status = inline_->Run(&contexts->runs_inline, std::move(arguments), values);
  } else if (!fell_back) {
    status =
        inline_->RunWithBorrowedArgs(&contexts->runs_inline, arguments, values);
    // A rejected function has not run. A function that has run must not run
    // again for the same element, because it may have a state.
    fell_back = IsRejection(status);
    if (fell_back) TF_RETURN_IF_ERROR(FallBack(&contexts->usual));
    if (status.ok()) accepted_ = true;
  }
  if (fell_back) {
    values->clear();
    status = usual_->Run(&contexts->usual, std::move(arguments), values);
  }
  // If it fell back, the default executor has run the layers as well.
  if (status.ok() && !is_native() && !fell_back) *layers = metadata_->layers();
  if (!absl::IsOutOfRange(status)) return status;
  return InvalidArgument("The function produced OutOfRangeError: ",
                         status.message());
}

}  // namespace refurbish_tf
