// The program `switchyard` of the Python package. Ranks run it again (/proc/self/exe), which they
// could not do with the Python interpreter.
extern "C" int switchyard_main(int argc, char** argv);

int main(int argc, char** argv) { return switchyard_main(argc, argv); }
