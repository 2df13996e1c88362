// Elementary functions for what must be the same bytes everywhere. The C
// library's differ from one to the next in the last digits; the operations here
// are rounded alike by every processor. They are off by about one unit in the
// last place.
#pragma once

namespace refurbish_tf {

// Of a number above 0.
double Log2(double x);
// Below 2^-1000 it is 0.
double Exp2(double x);
double Exp(double x);

struct SineCosine {
  double sine, cosine;
};
// Of at most a thousand radians. keras/offloaded_rows.py has the same.
SineCosine SineCosineOf(double radians);

}  // namespace refurbish_tf
