// The complete Switchyard program with an additional dispatcher.
#include "apps/main.h"

#include "mailbox.h"

int main(int argc, char** argv) { return switchyard::Main(argc, argv, AddMailbox); }
