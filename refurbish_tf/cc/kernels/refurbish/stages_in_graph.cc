// Finds the refurbish stages of a dataset, including those in its functions,
// and the operations after them that a symbolic checkpoint restores wrongly.

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "tensorflow/core/data/serialization_utils.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace refurbish_tf {
namespace {

struct StageInGraph {
  std::string name;
  // An operation after the stage that reads an element again after a restore
  // of a symbolic checkpoint, or empty.
  std::string read_again_by;
  // An operation whose symbolic checkpoint lacks what it skipped, or empty.
  std::string skipped_by;
};

// After a restore from a symbolic checkpoint, these operations read their
// current element again and continue at their saved position within it.
bool ReadsAgain(const std::string& op) {
  return absl::StartsWith(op, "Unbatch") || absl::StartsWith(op, "FlatMap") ||
         absl::StrContains(op, "Interleave");
}

// A symbolic checkpoint of `interleave` lacks what these operations have
// skipped: TensorFlow's iterators only note elements that are read.
bool Skips(const std::string& op) {
  return absl::StartsWith(op, "Shard") || absl::StartsWith(op, "Skip");
}

// What is known about the operations after a dataset.
struct After {
  std::string reads_again, skips, loses_skipped;

  // The operations after input `i` of `op`: `op` itself, and those after `op`.
  After Input(const std::string& op, int i) const {
    After after = *this;
    if (i == 0 && ReadsAgain(op)) after.reads_again = op;
    if (i == 0 && Skips(op)) after.skips = op;
    if (i > 0 && op == "InterleaveDataset" && !skips.empty()) {
      after.loses_skipped = skips;
    }
    return after;
  }

  int bits() const {
    return !reads_again.empty() + 2 * !skips.empty() +
           4 * !loses_skipped.empty();
  }
};

int NumTypes(const NodeDef& node, const char* attr) {
  const auto found = node.attr().find(attr);
  return found == node.attr().end() ? 0 : found->second.list().type_size();
}

// The graph of a dataset, or a call of one of its functions.
struct Scope {
  std::unordered_map<std::string, const NodeDef*> nodes;
  Scope* caller = nullptr;
  // What the caller passes for each argument.
  std::unordered_map<std::string, std::string> arguments;
  std::vector<std::pair<std::string, Tensor>> captured;
  std::set<std::pair<const NodeDef*, int>> visited;
};

class Search {
 public:
  explicit Search(OpKernelContext* ctx) : ctx_(ctx) {}

  // Adds the stages whose elements `dataset` yields.
  void VisitDataset(const DatasetBase& dataset, const After& after) {
    tensorflow::GraphDef& graph = graphs_.emplace_back();
    Scope scope;
    std::string output;
    // The graph is made as for a rewrite, which copies no data into it.
    if (!tensorflow::data::AsGraphDefForRewrite(ctx_, &dataset, &scope.captured,
                                                &graph, &output)
             .ok()) {
      // The dataset cannot be written into a graph, but its inputs may be.
      std::vector<const DatasetBase*> inputs;
      if (!dataset.InputDatasets(&inputs).ok()) return;
      for (const DatasetBase* input : inputs) {
        VisitDataset(*input, after.Input(dataset.type_string(), 0));
      }
      return;
    }
    for (const NodeDef& node : graph.node()) scope.nodes[node.name()] = &node;
    for (const auto& function : graph.library().function()) {
      functions_[function.signature().name()] = &function;
    }
    Visit(&scope, output, after);
  }

  // Each stage once, upstream first.
  const std::vector<StageInGraph>& stages() const { return stages_; }

 private:
  void Visit(Scope* scope, const std::string& input, const After& after) {
    // In a function an input is written as "node:output".
    const std::string name = input.substr(0, input.find(':'));
    const auto argument = scope->arguments.find(name);
    if (argument != scope->arguments.end()) {
      Visit(scope->caller, argument->second, after);
      return;
    }
    for (const auto& [placeholder, tensor] : scope->captured) {
      DatasetBase* dataset;
      if (placeholder == name && tensor.dtype() == tensorflow::DT_VARIANT &&
          tensorflow::data::GetDatasetFromVariantTensor(tensor, &dataset)
              .ok()) {
        VisitDataset(*dataset, after);
        return;
      }
    }
    const auto found = scope->nodes.find(name);
    if (found == scope->nodes.end()) return;
    const NodeDef& node = *found->second;
    if (!scope->visited.emplace(&node, after.bits()).second) return;
    for (int i = 0; i < node.input_size(); ++i) {
      Visit(scope, node.input(i), after.Input(node.op(), i));
    }
    for (const auto& attr : node.attr()) {
      const auto function = functions_.find(attr.second.func().name());
      if (function != functions_.end()) {
        VisitFunction(scope, node, *function->second,
                      after.Input(node.op(), 1));
      }
    }
    if (node.op() == "RefurbishTf>RefurbishDataset") Add(*scope, node, after);
  }

  void VisitFunction(Scope* caller, const NodeDef& node,
                     const tensorflow::FunctionDef& function,
                     const After& after) {
    Scope scope;
    scope.caller = caller;
    for (const NodeDef& each : function.node_def()) {
      scope.nodes[each.name()] = &each;
    }
    // The inputs of a dataset are its own input and what its function has
    // captured; the function's arguments are an element and the captured ones.
    // Other operations pass their last inputs on.
    const bool is_dataset = absl::StrContains(node.op(), "Dataset");
    const auto& arguments = function.signature().input_arg();
    const int num_passed =
        std::min(arguments.size(),
                 is_dataset ? NumTypes(node, "Targuments") : node.input_size());
    const int first = is_dataset ? 1 : node.input_size() - num_passed;
    for (int i = 0; i < num_passed && first + i < node.input_size(); ++i) {
      scope.arguments[arguments[arguments.size() - num_passed + i].name()] =
          node.input(first + i);
    }
    for (const auto& output : function.ret()) {
      Visit(&scope, output.second, after);
    }
  }

  void Add(const Scope& scope, const NodeDef& node, const After& after) {
    const int input = 1 + NumTypes(node, "Tpartial") + NumTypes(node, "Tfinal");
    const auto found = input < node.input_size()
                           ? scope.nodes.find(node.input(input))
                           : scope.nodes.end();
    if (found == scope.nodes.end() || found->second->op() != "Const") return;
    const auto& value = found->second->attr().at("value").tensor();
    if (value.string_val_size() != 1) return;
    auto same = std::find_if(stages_.begin(), stages_.end(),
                             [&value](const StageInGraph& stage) {
                               return stage.name == value.string_val(0);
                             });
    if (same == stages_.end()) {
      same = stages_.insert(same, {value.string_val(0), "", ""});
    }
    if (same->read_again_by.empty()) same->read_again_by = after.reads_again;
    if (same->skipped_by.empty()) same->skipped_by = after.loses_skipped;
  }

  OpKernelContext* const ctx_;
  std::deque<tensorflow::GraphDef> graphs_;
  std::unordered_map<std::string, const tensorflow::FunctionDef*> functions_;
  std::vector<StageInGraph> stages_;
};

absl::Status NamesOfStages(OpKernelContext* ctx) {
  DatasetBase* dataset;
  TF_RETURN_IF_ERROR(
      tensorflow::data::GetDatasetFromVariantTensor(ctx->input(0), &dataset));
  Search search(ctx);
  search.VisitDataset(*dataset, After());
  const std::vector<StageInGraph>& stages = search.stages();
  const TensorShape shape({static_cast<int64_t>(stages.size())});
  Tensor names(DT_STRING, shape), read_again(DT_STRING, shape),
      skipped(DT_STRING, shape);
  for (size_t i = 0; i < stages.size(); ++i) {
    names.vec<tstring>()(i) = stages[i].name;
    read_again.vec<tstring>()(i) = stages[i].read_again_by;
    skipped.vec<tstring>()(i) = stages[i].skipped_by;
  }
  ctx->set_output(0, names);
  ctx->set_output(1, read_again);
  ctx->set_output(2, skipped);
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("RefurbishStages", FunctionOp<NamesOfStages>);

}  // namespace
}  // namespace refurbish_tf
