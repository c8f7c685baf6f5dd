// Python's arithmetic of int and float.
#pragma once

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Both operands are numbers; bools count as integers. Raises for division by zero and for integers
// beyond 2^120.
Value Compute(BinaryOp op, const Value& a, const Value& b);

// Python's round(): to `digits` decimal places, with ties to even.
double RoundHalfEven(double value, int digits);

}  // namespace switchyard::jinja
