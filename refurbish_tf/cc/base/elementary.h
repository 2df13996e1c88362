// Elementary functions for results that must be the same bytes everywhere. C
// libraries differ in the last digits, while every CPU rounds the operations
// used here in the same way. The error is about one unit in the last place.
#pragma once

namespace refurbish_tf {

// `x` must be above 0.
double Log2(double x);
// Results below 2^-1000 are 0.
double Exp2(double x);
double Exp(double x);

struct SineCosine {
  double sine, cosine;
};
// Valid up to a thousand radians. keras/offloaded_rows.py repeats this code.
SineCosine SineCosineOf(double radians);

}  // namespace refurbish_tf
