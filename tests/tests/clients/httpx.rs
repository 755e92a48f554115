//! httpx, whose HTTP/2 is the `h2` of Python.

use weir_tests::dialogue::{PATIENCE, client_program, run_tool};

use super::secure;

const SCRIPT: &str = r#"
import asyncio, hashlib, ssl, sys
import httpx
port, ca = sys.argv[1], sys.argv[2]
base = f"https://localhost:{port}"
context = ssl.create_default_context(cafile=ca)

def ask(client, method, path, **more):
    response = client.request(method, base + path, **more)
    assert response.http_version == "HTTP/2", response.http_version
    return response

with httpx.Client(http2=True, verify=context, timeout=20, trust_env=False) as client:
    for length in (0, 1, 65535, 65536, 3 << 20):
        body = bytes(i * 7 & 255 for i in range(256)) * (length // 256 + 1)
        body = body[:length]
        assert ask(client, "POST", "/echo", content=body).content == body, length
        def pieces():
            for start in range(0, length, 50021):
                yield body[start:start + 50021]
        assert ask(client, "POST", "/echo", content=pieces()).content == body, length
        assert len(ask(client, "GET", f"/bytes/{length}").content) == length
    head = ask(client, "HEAD", "/bytes/70000")
    assert (head.headers["content-length"], head.content) == ("70000", b"")
    assert ask(client, "GET", "/unknown").text == "one two three"
    early = ask(client, "POST", "/early", content=b"x" * 100)
    assert (early.status_code, early.text) == (403, "not for you")
    with client.stream("GET", base + "/bytes/20000000") as response:
        next(response.iter_bytes(1000))
    assert ask(client, "GET", "/hello").text == "hello"

async def together():
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(http2=True, verify=context, timeout=20, limits=limits, trust_env=False) as client:
        async def one(n):
            response = await client.get(f"{base}/bytes/{n * 500}")
            assert response.http_version == "HTTP/2" and len(response.content) == n * 500
        await asyncio.gather(*[one(n) for n in range(200)])
asyncio.run(together())
print("ok")
"#;

#[test]
fn httpx_sends_and_gets_bodies_of_all_kinds_in_http_2() {
    for behind in secure::BEHIND {
        let site = secure::Site::start(behind);
        let (port, ca) = (site.address().port().to_string(), site.authority.path("ca.pem"));
        let finished =
            run_tool(&client_program("python/bin/python"), &["-c", SCRIPT, &port, &ca], b"", PATIENCE * 6);
        assert_eq!(finished.succeeded().trim(), "ok", "{behind:?}\n{}", site.weir.story());
        site.spoke("HTTP/2.0");
    }
}
