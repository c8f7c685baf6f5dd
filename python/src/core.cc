// The extension module switchyard._core: a thin layer over server/offline. switchyard/engine.py is
// the public interface.
//
// C++ threads never call Python. A caller waits without the GIL, and an event loop polls the
// descriptor of a Notifier. So neither a fork nor the end of the interpreter can meet a C++ thread
// that wants the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/api/json_body.h"
#include "server/offline/engine.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace switchyard;

namespace {

using ReleasedGil = nb::call_guard<nb::gil_scoped_release>;

const char* NameOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid:
      return "invalid";
    case ErrorKind::kNotFound:
      return "not_found";
    case ErrorKind::kUnauthorized:
      return "unauthorized";
    case ErrorKind::kTooLarge:
      return "too_large";
    case ErrorKind::kBusy:
      return "busy";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kPeer:
      return "peer";
    case ErrorKind::kResource:
      return "resource";
  }
  return "peer";
}

// Raises the class of switchyard.errors for this kind.
void Raise(const Error& error) {
  const auto* request = dynamic_cast<const RequestError*>(&error);
  const std::string param = request != nullptr ? request->param() : "";
  try {
    const nb::object exception =
        nb::module_::import_("switchyard.errors")
            .attr("from_core")(NameOf(error.kind()), error.what(), param, error.hint());
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

void Translate(const std::exception_ptr& failure, void*) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    Raise(error);
  } catch (const offline::Interrupted&) {  // the handler of the signal has set an exception
    if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
}

// Runs Python's signal handlers, on the main thread only. Returns whether one raised an exception.
bool HasSignal() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// An array that takes over the memory of `values`; nothing is copied.
template <typename T>
nb::object Array(std::vector<T>&& values, const std::vector<size_t>& shape) {
  auto* kept = new std::vector<T>(std::move(values));
  kept->reserve(1);  // so that an empty array has an address too
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner),
                  nb::rv_policy::reference);
}

// Arrays by name: val and idx [n], top_val and top_idx [n, top], requested_val and requested_idx
// [n, requested].
nb::object Arrays(std::optional<offline::Logprobs>& logprobs) {
  if (!logprobs) return nb::none();
  const size_t n = logprobs->values.size();
  const auto top = static_cast<size_t>(logprobs->top),
             requested = static_cast<size_t>(logprobs->requested);
  nb::dict arrays;
  arrays["val"] = Array(std::move(logprobs->values), {n});
  arrays["idx"] = Array(std::move(logprobs->tokens), {n});
  arrays["top_val"] = Array(std::move(logprobs->top_values), {n, top});
  arrays["top_idx"] = Array(std::move(logprobs->top_tokens), {n, top});
  arrays["requested_val"] = Array(std::move(logprobs->requested_values), {n, requested});
  arrays["requested_idx"] = Array(std::move(logprobs->requested_tokens), {n, requested});
  return arrays;
}

nb::object Experts(std::optional<offline::RoutedExperts>& experts) {
  if (!experts) return nb::none();
  const auto layers = static_cast<size_t>(experts->layers);
  const auto top_k = static_cast<size_t>(experts->top_k);
  const size_t positions = layers * top_k > 0 ? experts->ids.size() / (layers * top_k) : 0;
  return Array(std::move(experts->ids), {positions, layers, top_k});
}

// (index, text, output_ids, meta_info as JSON, finished, input arrays, output arrays, experts)
nb::list Take(offline::GenerateCall& call) {
  std::vector<offline::Result> results;
  {
    const nb::gil_scoped_release release;
    results = call.Take();
  }
  nb::list list;
  for (offline::Result& r : results)
    list.append(nb::make_tuple(r.index, r.text, r.output_ids, r.meta_info, r.finished,
                               Arrays(r.input_logprobs), Arrays(r.output_logprobs),
                               Experts(r.routed_experts)));
  return list;
}

// A Notifier as Python owns it. The engine's threads share only the C++ object, since the last
// reference to a Python object must not end on a thread without the GIL.
struct LoopNotifier {
  std::shared_ptr<offline::Notifier> notifier = std::make_shared<offline::Notifier>();

  static std::shared_ptr<offline::Notifier> Of(const LoopNotifier* self) {
    return self != nullptr ? self->notifier : nullptr;
  }
};

// Waits for news. Python's signal handlers run meanwhile; their exceptions end the wait.
void Wait(offline::Call& call) {
  for (;;) {
    {
      const nb::gil_scoped_release release;
      if (call.Wait(std::chrono::milliseconds(100))) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.attr("__version__") = SWITCHYARD_VERSION;
  m.attr("has_device_code") = static_cast<bool>(SWITCHYARD_CUDA);
  nb::register_exception_translator(Translate);

  nb::class_<LoopNotifier>(m, "Notifier", "Calls with news, for an event loop.")
      .def(nb::init<>())
      .def(
          "fileno", [](const LoopNotifier& self) { return self.notifier->fd(); },
          "Readable while `take` has numbers to return.")
      .def(
          "take", [](const LoopNotifier& self) { return self.notifier->Take(); },
          "The numbers of the calls that have news.");

  nb::class_<offline::Call>(m, "Call", "A call in progress.")
      .def_prop_ro("number", &offline::Call::number)
      .def("has_news", &offline::Call::HasNews)
      .def("wait", &Wait, "Waits for news without the GIL.")
      .def("abort", &offline::Call::Abort, ReleasedGil());

  nb::class_<offline::GenerateCall, offline::Call>(m, "GenerateCall", "A call of /generate.")
      .def_prop_ro("single", &offline::GenerateCall::single)
      .def_prop_ro("done", &offline::GenerateCall::done)
      .def("take", &Take, "New results as tuples.");

  nb::class_<offline::RouteCall, offline::Call>(m, "RouteCall", "A call of another route.")
      .def_prop_ro("done", &offline::RouteCall::done)
      .def("take", &offline::RouteCall::Take, ReleasedGil(),
           "The new part of the response's body.");

  nb::class_<offline::Engine>(m, "Engine", "An engine whose ranks are threads of this process.")
      .def(
          "__init__",
          [](offline::Engine* self, const std::vector<std::string>& flags) {
            const nb::gil_scoped_release release;
            new (self) offline::Engine(flags, HasSignal);
          },
          "flags"_a)
      .def(
          "generate",
          [](offline::Engine& self, const std::string& body, const LoopNotifier* notifier) {
            return self.Generate(body, LoopNotifier::Of(notifier));
          },
          ReleasedGil(), "body"_a, "notifier"_a.none() = nb::none())
      .def(
          "request",
          [](offline::Engine& self, const std::string& method, const std::string& path,
             const std::string& body, const LoopNotifier* notifier) {
            return self.Request(method, path, body, LoopNotifier::Of(notifier));
          },
          ReleasedGil(), "method"_a, "path"_a, "body"_a, "notifier"_a.none() = nb::none())
      .def("token_text", &offline::Engine::TokenText, "token"_a)
      .def("shutdown", &offline::Engine::Shutdown, ReleasedGil());
}
