// Setup of the HTTP server of `serve`.
#pragma once

#include <string>

#include "server/args/args.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard {

// Builds the options from flags. Raises the soft limit of descriptors to the hard limit. If
// --max-connections still exceeds it, reduces the number of connections and logs a warning. Also
// warns if the server listens on all addresses without an API key. Throws the errors of the readers
// in http_args.h.
http::ServerOptions SetUpHttp(const ServerArgs& args);

// The URL of the server, such as "https://[::1]:30000". With --uds it has no port, because clients
// get the socket's path separately.
std::string ServerUrl(const HttpArgs& args, const std::string& host, int port);

// After this call, an uncaught std::bad_alloc ends the process with a message and exit code 1
// instead of an abort.
void ExitWhenOutOfMemory();

// After this call, freed blocks of 1 MiB and more return to the system immediately. By default,
// glibc raises this threshold to up to 32 MiB, so the memory of freed request bodies would stay
// with the process.
void ReturnFreedMemory();

// The endpoints of the APIs.

// Adds the endpoints that a server and the engine within a process have: those of OpenAI,
// Anthropic, SGLang and of pooling models. `service` outlives the server.
void RegisterEndpoints(http::Server& server, Service& service);

}  // namespace switchyard
