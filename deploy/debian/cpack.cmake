# Configuration of cpack for the Debian package; scripts/package calls it with these environment variables:
# SWITCHYARD_ROOT (the sources), SWITCHYARD_STAGE (the installed files, below /), SWITCHYARD_VERSION.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME switchyard)
set(CPACK_PACKAGE_VERSION $ENV{SWITCHYARD_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_PACKAGE_FILE_NAME switchyard)  # not used: the name below is that of Debian
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGE_VENDOR Switchyard)
set(CPACK_PACKAGE_CONTACT "The Switchyard authors <switchyard@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Server for Mixture-of-Experts language models")
set(CPACK_PACKAGE_DESCRIPTION
  "Switchyard serves and trains Mixture-of-Experts language models with expert\nparallelism, on CPUs and NVIDIA GPUs. It has the HTTP APIs of OpenAI, Anthropic\nand SGLang. The package contains a systemd unit and a small model.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# Dependencies of the program: dpkg-shlibdeps finds the packages of its libraries.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Line editing of `switchyard chat`, which loads the library at run time.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libedit2)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "curl, openmpi-bin")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(control $ENV{SWITCHYARD_ROOT}/deploy/debian)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${control}/conffiles;${control}/postinst;${control}/prerm;${control}/postrm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# The stage has the paths of the system, so nothing is put before them.
set(CPACK_INSTALLED_DIRECTORIES "$ENV{SWITCHYARD_STAGE};.")
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_SET_DESTDIR OFF)
