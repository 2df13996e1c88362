// The type in which boxes and key points are stored, for code that computes
// with them in double.
#pragma once

namespace refurbish_tf {

struct NumberType {
  // To the nearest number of the type, half to even.
  double (*rounded)(double number);
  // The distance from 1 to the next number; of whole numbers 0.
  double epsilon;
  // The largest number.
  double highest;
};

}  // namespace refurbish_tf
