// A user's function, run by the thread that calls it.
//
// Native layers at its end are called directly (image_layers.h). What comes
// before them runs on TensorFlow's single-threaded executor, which has no
// queues and wakes no thread. That executor cannot run the primitives to which
// `cond` and `while` are lowered, so it gets a copy of the function in which
// nothing is lowered; graphs are written from the function as it was traced. A
// function that the executor still rejects (control flow of version 1,
// references) runs on the default executor with the caller's runner;
// `rtf.describe` reports this for refurbish. If as many calls run at once as
// there are CPU cores, an operation does not split its work across threads.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/image_layers.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// The definition of a function, kept by an op kernel in two forms: as it was
// traced, and with no control flow lowered.
class InlineFunctionMetadata {
 public:
  static absl::Status Create(
      OpKernelConstruction* ctx, NameAttrList function,
      std::shared_ptr<const InlineFunctionMetadata>* metadata);

  // False if the single-threaded executor is known to reject the function. Even
  // if this is true, the executor may reject it in a call.
  bool is_inline() const { return is_inline_; }
  bool calls_python() const { return calls_python_; }
  // The native layers at the end, or null; whether the function is only these.
  const LayersFunction* layers() const { return layers_.get(); }
  bool is_native() const { return layers_ != nullptr && layers_are_all_; }

 private:
  friend class InlineFunction;

  std::shared_ptr<FunctionMetadata> as_traced_;
  std::shared_ptr<FunctionMetadata> for_inline_;
  bool is_inline_ = true;
  bool calls_python_ = false;
  // If it does more, `for_inline_` is only the part before the layers.
  std::unique_ptr<const LayersFunction> layers_;
  bool layers_are_all_ = false;
};

// Fails unless the function returns components of these types, and there is a
// shape for each. The attributes of a loaded graph may disagree.
absl::Status CheckResultTypes(const OpKernelConstruction* ctx, const char* name,
                              const std::string& function,
                              const DataTypeVector& types, size_t num_shapes);

// The contexts in which an iterator runs functions.
struct FunctionContexts {
  // `num_calls`: how many calls run at once, or 0 if the consumer runs all.
  FunctionContexts(IteratorContext* ctx, CancellationManager* manager,
                   int num_calls);

  IteratorContext usual;
  // Its runner runs each closure at once, on the calling thread.
  IteratorContext runs_inline;
  // How many threads one operation may use: the option
  // max_intra_op_parallelism, or a call's share of the CPU cores. 0: no bound.
  int max_parallelism;
};

class InstantiatedInlineFunction;

// A function with the tensors that it captures.
class InlineFunction {
 public:
  static absl::Status Create(
      OpKernelContext* ctx,
      std::shared_ptr<const InlineFunctionMetadata> metadata,
      const std::string& arguments, std::unique_ptr<InlineFunction>* function);

  const InlineFunctionMetadata& metadata() const { return *metadata_; }
  CapturedFunction& as_traced() const { return *as_traced_; }
  // Adds the function to a graph. If `ctx` asks for it, fails if the graph
  // cannot hold the whole function: a process that loads the graph may not have
  // the Python function that it calls.
  absl::Status AddToGraph(SerializationContext* ctx,
                          DatasetBase::DatasetGraphDefBuilder* b) const {
    TF_RETURN_IF_ERROR(
        ctx->HandleCheckExternalStateStatus(as_traced_->CheckExternalState()));
    return b->AddFunction(ctx, as_traced_->func().name(),
                          *as_traced_->lib_def());
  }
  bool is_stateful() const { return !as_traced_->CheckExternalState().ok(); }

  absl::Status Instantiate(
      IteratorContext* ctx,
      std::unique_ptr<InstantiatedInlineFunction>* function) const;

 private:
  std::shared_ptr<const InlineFunctionMetadata> metadata_;
  std::unique_ptr<CapturedFunction> as_traced_;
  std::unique_ptr<CapturedFunction> for_inline_;
};

// A function that an iterator can call. Thread-safe.
class InstantiatedInlineFunction {
 public:
  // A function that calls Python gets copies of tensors that others hold,
  // because it may write into them. An OutOfRange error becomes
  // InvalidArgument, as in `map`: it would be taken for the end of the dataset.
  absl::Status Run(FunctionContexts* contexts, std::vector<Tensor> arguments,
                   std::vector<Tensor>* results);
  // Writes the results into a row, after checking that they fit it.
  absl::Status RunInto(FunctionContexts* contexts,
                       std::vector<Tensor> arguments, const BatchRows& rows,
                       const BatchRows::Row& row);
  // Whether it consists of native layers alone.
  bool is_native() const { return metadata_->is_native(); }
  // The layers that can be called in place of this function, or null. For the
  // arguments see `LayersFunction::Takes`.
  const LayersFunction* LayersFor(const std::vector<Tensor>& arguments,
                                  int num_missing = 0) const {
    const LayersFunction* const layers = metadata_->layers();
    return is_native() && layers->Takes(arguments, num_missing) ? layers
                                                                : nullptr;
  }

 private:
  friend class InlineFunction;

  using Function = InstantiatedCapturedFunction;

  // Runs all but the native layers at the end. Then the caller must call
  // `*layers` with `*values`; if `*layers` is null, `*values` are the results.
  absl::Status RunUpToLayers(FunctionContexts* contexts,
                             std::vector<Tensor>* values,
                             const LayersFunction** layers);
  // Makes all later calls run on the default executor.
  absl::Status FallBack(IteratorContext* ctx) ABSL_LOCKS_EXCLUDED(mu_);

  const InlineFunctionMetadata* metadata_ = nullptr;
  CapturedFunction* as_traced_ = nullptr;
  absl::Mutex mu_;
  // For the default executor. Set once, before `fell_back_`.
  std::unique_ptr<Function> usual_;
  // For the single-threaded executor. Null if it is known to reject the
  // function before the first call.
  std::unique_ptr<Function> inline_;
  // Whether a call has succeeded on the single-threaded executor. The executor
  // may reject a function at its first call.
  std::atomic<bool> accepted_{false};
  std::atomic<bool> fell_back_{false};
};

}  // namespace refurbish_tf
