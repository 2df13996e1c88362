// A warning of Python's, from any thread.
#pragma once

#include <string>

namespace refurbish_tf {

// Has Python's main thread give a PipelineWarning, as soon as it runs Python
// again: there the warning has the line of the user's loop, and nothing waits
// for the interpreter's lock. Without Python in the process nothing happens.
void WarnInPython(const std::string& text);

}  // namespace refurbish_tf
