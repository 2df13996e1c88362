// A function of the user's, run by the thread that calls it.
#ifndef REFURBISH_TF_CC_KERNELS_INLINE_FUNCTION_H_
#define REFURBISH_TF_CC_KERNELS_INLINE_FUNCTION_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// What an op kernel knows of a function: its definition, twice. The first, as it
// was traced, is what graphs are written from. In the second no control flow is
// lowered, so that TensorFlow's single-threaded executor, which has no queues and
// wakes no thread, can run it.
class InlineFunctionMetadata {
 public:
  static absl::Status Create(
      OpKernelConstruction* ctx, NameAttrList function,
      std::shared_ptr<const InlineFunctionMetadata>* metadata);

  // Whether the single-threaded executor takes it, as far as can be seen.
  bool is_inline() const { return is_inline_; }
  // Whether an operation in it calls Python.
  bool calls_python() const { return calls_python_; }

 private:
  friend class InlineFunction;

  std::shared_ptr<FunctionMetadata> as_traced_;
  std::shared_ptr<FunctionMetadata> for_inline_;
  bool is_inline_ = true;
  bool calls_python_ = false;
};

// The contexts of an iterator in which functions run.
struct FunctionContexts {
  // The runner of the one runs what it is given at once. `num_calls`: that run at
  // the same time, or 0 where the consumer does everything.
  FunctionContexts(IteratorContext* ctx, CancellationManager* manager,
                   int num_calls);

  IteratorContext usual;
  IteratorContext runs_inline;
  // Of an operation: as the option max_intra_op_parallelism asks, else its share of
  // the processors. 0 for no bound.
  int max_parallelism;
};

class InstantiatedInlineFunction;

// The function and what it captures.
class InlineFunction {
 public:
  static absl::Status Create(
      OpKernelContext* ctx,
      std::shared_ptr<const InlineFunctionMetadata> metadata,
      const std::string& arguments, std::unique_ptr<InlineFunction>* function);

  const InlineFunctionMetadata& metadata() const { return *metadata_; }
  // Of the function as it was traced.
  CapturedFunction& as_traced() const { return *as_traced_; }
  // What it captures, and, as the context has it, an error where a graph does not
  // hold all of it: who reads the graph may have no such Python function.
  absl::Status AddToGraph(SerializationContext* ctx,
                          DatasetBase::DatasetGraphDefBuilder* b,
                          std::vector<Node*>* arguments,
                          DataTypeVector* argument_types) const;
  bool is_stateful() const { return !as_traced_->CheckExternalState().ok(); }

  absl::Status Instantiate(
      IteratorContext* ctx,
      std::unique_ptr<InstantiatedInlineFunction>* function) const;

 private:
  std::shared_ptr<const InlineFunctionMetadata> metadata_;
  std::unique_ptr<CapturedFunction> as_traced_;
  std::unique_ptr<CapturedFunction> for_inline_;
};

// Thread-safe.
class InstantiatedInlineFunction {
 public:
  // An OutOfRange of the function becomes InvalidArgument, as in `map`: it is not
  // the end of a sequence.
  absl::Status Run(FunctionContexts* contexts, std::vector<Tensor> arguments,
                   std::vector<Tensor>* results);

 private:
  friend class InlineFunction;

  using Function = InstantiatedCapturedFunction;

  // From now on it is run as TensorFlow runs functions.
  absl::Status Refuse(IteratorContext* ctx) ABSL_LOCKS_EXCLUDED(mu_);

  CapturedFunction* as_traced_ = nullptr;
  absl::Mutex mu_;
  // Set once, before `refused_` is.
  std::unique_ptr<Function> usual_;
  // Null where the executor does not take it.
  std::unique_ptr<Function> inline_;
  // What the executor does not take it may say at the first call only.
  std::atomic<bool> taken_{false};
  std::atomic<bool> refused_{false};
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_INLINE_FUNCTION_H_
