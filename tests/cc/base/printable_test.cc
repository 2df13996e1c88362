// Error messages escape bytes that are not UTF-8.
#include "refurbish_tf/cc/base/printable.h"

#include <string>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

TEST(PrintableTest, ValidUtf8IsUnchanged) {
  for (const std::string text : {"", "a/b\n", "caf\u00e9", "\u20ac\ud7ff\ue000", "\U00010000\U0010ffff"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

// Like Python's bytes.decode(errors="backslashreplace").
TEST(PrintableTest, InvalidUtf8IsEscapedByteByByte) {
  for (const auto& [bytes, text] :
       std::initializer_list<std::pair<std::string, std::string>>{{"a\xff z", "a\\xff z"},
                                                                  {"caf\xe9", "caf\\xe9"},
                                                                  {"\x80", "\\x80"},
                                                                  {"\xe2\x82z", "\\xe2\\x82z"},
                                                                  {"\xc3", "\\xc3"},
                                                                  {"\xc0\x80\xc1\xbf", "\\xc0\\x80\\xc1\\xbf"},
                                                                  {"\xe0\x9f\xbf", "\\xe0\\x9f\\xbf"},
                                                                  {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
                                                                  {"\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf"},
                                                                  {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
                                                                  {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"}}) {
    EXPECT_EQ(Printable(bytes), text);
  }
}

TEST(PrintableTest, AStatusKeepsItsCode) {
  const absl::Status status = Printable(absl::DataLossError("\xff"));
  EXPECT_EQ(status, absl::DataLossError("\\xff"));
  EXPECT_TRUE(Printable(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace refurbish_tf
