# What is installed where: the program with its model, manual pages, completions and unit (component quire), and the library with its
# header (component libquire). `make install PREFIX=...`, `make packages` (.deb, through CPack) and `make tarball` take it from here.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME quire)
set(packaging ${PROJECT_SOURCE_DIR}/packaging)

# Written by the program itself.
add_custom_command(
  OUTPUT ${PROJECT_BINARY_DIR}/help/man1/quire.1
  COMMAND quire help --write ${PROJECT_BINARY_DIR}/help
  DEPENDS quire
  COMMENT "Writing manual pages and completions")
add_custom_target(manuals DEPENDS ${PROJECT_BINARY_DIR}/help/man1/quire.1)
add_custom_target(packed DEPENDS quire house libquire manuals)

install(TARGETS quire COMPONENT quire)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/house/ DESTINATION share/quire/house COMPONENT quire
        FILES_MATCHING PATTERN "*.gguf" PATTERN "*.jsonl" PATTERN "*.json")
install(DIRECTORY ${PROJECT_BINARY_DIR}/help/man1 DESTINATION share/man COMPONENT quire)
install(FILES ${PROJECT_BINARY_DIR}/help/bash/quire DESTINATION share/bash-completion/completions COMPONENT quire)
install(FILES ${PROJECT_BINARY_DIR}/help/zsh/_quire DESTINATION share/zsh/vendor-completions COMPONENT quire)
install(FILES ${PROJECT_BINARY_DIR}/help/fish/quire.fish DESTINATION share/fish/vendor_completions.d COMPONENT quire)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION share/doc/quire COMPONENT quire)
# The unit names the program where it comes to be; /usr has its settings in /etc, other places have their own.
install(CODE "set(packaging ${packaging})" COMPONENT quire)
install(CODE [[
  set(ETC "${CMAKE_INSTALL_PREFIX}/etc")
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(ETC "/etc")
  endif()
  set(BIN "${CMAKE_INSTALL_PREFIX}/bin")
  configure_file(${packaging}/quire.service.in "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/system/quire.service" @ONLY)
  if(NOT EXISTS "$ENV{DESTDIR}${ETC}/default/quire")
    configure_file(${packaging}/default "$ENV{DESTDIR}${ETC}/default/quire" COPYONLY)
  endif()
]] COMPONENT quire)

install(TARGETS libquire LIBRARY DESTINATION lib COMPONENT libquire NAMELINK_COMPONENT libquire OPTIONAL)
install(FILES ${PROJECT_SOURCE_DIR}/include/quire.h DESTINATION include COMPONENT libquire)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/quire.pc @ONLY CONTENT "prefix=\${pcfiledir}/../..
Name: quire
Description: a language model in your own program
Version: @PROJECT_VERSION@
Libs: -L\${prefix}/lib -lquire
Cflags: -I\${prefix}/include
")
install(FILES ${PROJECT_BINARY_DIR}/quire.pc DESTINATION lib/pkgconfig COMPONENT libquire)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "quire")
set(CPACK_PACKAGE_CONTACT "the authors of quire <quire@localhost>")
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL quire libquire)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_QUIRE_PACKAGE_NAME quire)
set(CPACK_DEBIAN_LIBQUIRE_PACKAGE_NAME libquire1)
set(CPACK_COMPONENT_QUIRE_DESCRIPTION "runs large language models, and shows what it does
 A program that answers from model files in GGUF and safetensors, with a server that speaks
 OpenAI's, Anthropic's and Ollama's languages, and a small model to begin with.")
set(CPACK_COMPONENT_LIBQUIRE_DESCRIPTION "a language model in your own program
 The engine of quire as a library with an interface in C, its header, and quire.pc.")
# What fetches models is opened when it is wanted.
set(CPACK_DEBIAN_QUIRE_PACKAGE_RECOMMENDS "libcurl4, libssl3, ca-certificates")
set(CPACK_DEBIAN_QUIRE_PACKAGE_SUGGESTS "libzmq5, libhiredis0.14, openmpi-bin")
set(CPACK_DEBIAN_LIBQUIRE_PACKAGE_RECOMMENDS "quire")
set(scripts ${packaging}/debian)
file(WRITE ${PROJECT_BINARY_DIR}/conffiles "/etc/default/quire\n")
set(CPACK_DEBIAN_QUIRE_PACKAGE_CONTROL_EXTRA ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm ${PROJECT_BINARY_DIR}/conffiles)
# libquire1 refreshes the loader's cache, as packages of libraries do.
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBQUIRE_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
include(CPack)
