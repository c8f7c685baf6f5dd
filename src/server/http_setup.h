// What `serve` does for its HTTP edge before it starts.
#pragma once

#include "server/args/args.h"
#include "server/http/http_server.h"

namespace switchyard {

// Options from flags. Raises the process's soft limit of descriptors to the hard one; where even
// that does not hold --max-connections, fewer are taken, and a warning says so. Warns where all
// addresses may call without a key. Throws what http_args.h does.
http::ServerOptions SetUpHttp(const ServerArgs& args);

// From here on a thread that finds no memory ends the process with a message and exit code 1
// instead of an abort.
void ExitWhenOutOfMemory();

}  // namespace switchyard
