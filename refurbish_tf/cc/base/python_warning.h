// A warning of Python's, from any thread.
#pragma once

#include <string>

namespace refurbish_tf {

// Has Python's main thread give a PipelineWarning, as soon as it runs Python
// again: there the warning has the line of the user's loop, and nothing waits
// for the interpreter's lock. Without Python in the process nothing happens.
void WarnInPython(const std::string& text);

// The end of a warning of what may be as it should.
inline constexpr char kSilence[] =
    "If it is meant, silence this: warnings.filterwarnings(\"ignore\", "
    "category=rtf.PipelineWarning).";

}  // namespace refurbish_tf
