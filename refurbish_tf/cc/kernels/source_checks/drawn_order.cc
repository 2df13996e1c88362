#include "refurbish_tf/cc/kernels/source_checks/drawn_order.h"

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "refurbish_tf/cc/kernels/op_lists.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace refurbish_tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::NodeDef;

class Functions {
 public:
  explicit Functions(const tensorflow::GraphDef& graph) {
    for (const FunctionDef& function : graph.library().function()) {
      functions_[function.signature().name()] = &function;
    }
  }

  // Whether a number that `node` returns may be drawn: by itself, by a function
  // that it calls, or because it is made from one that was.
  bool IsDrawn(const NodeDef& node, const FunctionDef& function) {
    if (!visited_.insert(&node).second) return false;
    if (DrawsAnew(node.op()) || CallsOneThatDraws(node)) return true;
    for (const std::string& input : node.input()) {
      if (InputIsDrawn(input, function)) return true;
    }
    return false;
  }

  // An input is written as "node:output:number", and an argument by its name.
  bool InputIsDrawn(const std::string& input, const FunctionDef& function) {
    const std::string name = input.substr(0, input.find(':'));
    for (const NodeDef& node : function.node_def()) {
      if (node.name() == name) return IsDrawn(node, function);
    }
    return false;
  }

 private:
  bool CallsOneThatDraws(const NodeDef& node) {
    for (const auto& [name, value] : node.attr()) {
      if (value.has_func() && Draws(value.func().name())) return true;
      for (const auto& each : value.list().func()) {
        if (Draws(each.name())) return true;
      }
    }
    const bool is_call = functions_.count(node.op()) > 0;
    return is_call && Draws(node.op());
  }

  bool Draws(const std::string& name) {
    const auto found = functions_.find(name);
    if (found == functions_.end()) return false;
    for (const NodeDef& node : found->second->node_def()) {
      if (!visited_.insert(&node).second) continue;
      if (DrawsAnew(node.op()) || CallsOneThatDraws(node)) return true;
    }
    return false;
  }

  std::unordered_map<std::string, const FunctionDef*> functions_;
  std::set<const NodeDef*> visited_;
};

}  // namespace

bool DrawsSeedOfIndexShuffle(const tensorflow::GraphDef& graph) {
  for (const FunctionDef& function : graph.library().function()) {
    for (const NodeDef& node : function.node_def()) {
      if (node.op() == "RandomIndexShuffle" && node.input_size() > 1 &&
          Functions(graph).InputIsDrawn(node.input(1), function)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace refurbish_tf
