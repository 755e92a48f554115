vcl 4.1;

# Varnish's built-in rules decide what is cached; an answer without a lifetime of its own gets that of `-t`.
backend app {
    .host = "127.0.0.1";
    .port = "{backend_port}";
}
