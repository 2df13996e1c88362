// Issues a warning in Python, from any thread.
#pragma once

#include <string>

namespace refurbish_tf {

// Makes Python's main thread issue a PipelineWarning the next time it runs
// Python code. The warning then points to the line of the user's loop, and
// nothing waits for the interpreter's lock. Does nothing without Python.
void WarnInPython(const std::string& text);

// The end of a warning about something that may be intended.
inline constexpr char kSilence[] =
    "If this is intended, silence the warning: warnings.filterwarnings("
    "\"ignore\", category=rtf.PipelineWarning).";

}  // namespace refurbish_tf
