// Reads tool calls that are written as JSON objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "text/output/offered_tools.h"
#include "text/output/output_events.h"
#include "text/output/python_literal.h"

namespace switchyard {

// Finds the end of one JSON value, byte by byte. Does not validate the value: only quotes and
// brackets are examined.
class JsonValueEnd {
 public:
  enum class Place {
    kInside,  // the byte belongs to the value
    kLast,    // the byte ends the value
    kAfter,   // the value ended before this byte (numbers and words)
  };
  Place Push(char c);

 private:
  int64_t depth_ = 0;
  bool started_ = false, in_string_ = false, escaped_ = false;
};

// Reads {"name": …, "arguments": …}, several such objects, or a list of them. The objects may be
// separated by commas or semicolons. "parameters" is another name of "arguments". Arguments are
// written as events while they arrive, unchanged. If the value is a string, its contents are the
// JSON, so it is decoded first. Keys other than these and "id" are skipped.
class JsonCallReader {
 public:
  struct Options {
    std::string_view stop;      // a call is malformed if its head has this marker; empty: none
    bool offered_only = false;  // a call of a tool that is not offered is malformed
  };
  // Does not own `writer` and `tools`.
  JsonCallReader(CallWriter& writer, const OfferedTools& tools, Options options)
      : writer_(writer), tools_(tools), options_(options) {}

  enum class Status {
    kMore,       // the whole text is consumed, and the calls may continue
    kEnd,        // the next byte does not belong to the calls
    kMalformed,  // the present object is not a call; its text so far is TakeRaw()
  };
  // Consumes the first `*used` bytes of `text`. No Push may follow kEnd or kMalformed.
  Status Push(std::string_view text, size_t* used);
  // Called at the end of the text. Ends an open call. Returns kMalformed if the text ends before
  // any call, or before the present call has begun; otherwise kEnd.
  Status Finish();

  int calls() const { return calls_; }  // calls written so far
  // The text after the last call that was consumed but became no event.
  std::string TakeRaw() { return std::exchange(raw_, {}); }

 private:
  enum class State {
    kBetween,    // before an object, or after it
    kKey,        // before a key or the object's end
    kKeyText,    // in a key
    kColon,      // after a key
    kValue,      // before a value
    kName,       // in the value of "name"
    kId,         // in the value of "id"
    kArguments,  // in the value of "arguments"
    kDecoded,    // in the value of "arguments", a string
    kSkipped,    // in another value
    kComma,      // after a value
  };
  // kAgain: the byte must be read once more, in the new state.
  enum class Step { kNext, kAgain, kEnd, kMalformed };

  Step Read(char c);
  Step ReadBetween(char c);
  Step ReadKey(char c);
  Step BeginValue(char c);
  Step ReadArguments(char c);
  Step ReadText(char c, std::string* text, State next);  // appends a string to `text`
  void EndArguments();
  Step EndObject();
  // Ends the present call and returns kEnd if the call has begun, else returns kMalformed.
  Step Malformed();
  bool Begin();  // writes kCallBegin; false: the name is malformed
  void EndCall();
  void Write(std::string_view arguments);
  void Flush();
  // True if the head of the present object contains the stop marker.
  bool IsStopped() const;
  // True if the next byte goes to raw_.
  bool IsKept() const {
    return !begun_ || (state_ != State::kArguments && state_ != State::kDecoded);
  }

  CallWriter& writer_;
  const OfferedTools& tools_;
  const Options options_;
  State state_ = State::kBetween;
  bool list_ = false, list_ended_ = false;
  std::string raw_;              // bytes after the last call that were consumed but became no event
  std::string key_, name_, id_;  // raw strings, without quotes
  bool has_name_ = false, has_arguments_ = false;
  bool begun_ = false;    // writer_.BeginCall was called
  bool escaped_ = false;  // the next byte of the string follows a backslash
  bool wrote_ = false;    // arguments are not empty
  std::string early_;     // arguments that came before the name
  std::string pending_;   // further arguments, still to be written
  std::string scalar_;    // arguments that are a number or a word
  JsonValueEnd value_;
  EscapeDecoder decoder_{EscapeDecoder::Language::kJson};
  int calls_ = 0;
};

}  // namespace switchyard
