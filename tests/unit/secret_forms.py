"""The forms in which texts have secrets, for all that keeps them out of sight."""

# A text, its secret, and what everybody may see. Settings have addresses and PINs.
IN_SETTINGS = [
    ("pkcs11:token=t?pin-value=47%2011&x=y", "47%2011", "pkcs11:token=t?pin-value=***&x=y"),
    ("pkcs11:token=t?pin%2dvalue%3DS3CRET x", "S3CRET", "pkcs11:token=t?pin%2dvalue%3D*** x"),
    ("pkcs11:object=o?PIN-VALUE=4711", "4711", "pkcs11:object=o?PIN-VALUE=***"),
    ("https://me:s3:cret@host/debian x", "s3:cret", "https://me:***@host/debian x"),
    ("https://me:s3@cr/et@host/debian", "s3@cr/et", "https://me:***@host/debian"),
    ("http://:pw@proxy:3128", "pw", "http://:***@proxy:3128"),
    ("http://me:12345@proxy:3128", "12345", "http://me:***@proxy:3128"),
    ("http://me@corp:hush@proxy:3128", "hush", "http://me@corp:***@proxy:3128"),
    ("https://ghp_hush@git.example:8443/a@b", "ghp_hush", "https://***@git.example:8443/a@b"),
    ("https://m.example/a?token=abc&b=c", "abc", "https://m.example/a?token=***&b=c"),
    ("https://m.example/a?X-Amz-Signature=abc", "abc", "https://m.example/a?X-Amz-Signature=***"),
    ("https://m.example/a?b=1&sig=a%3D", "a%3D", "https://m.example/a?b=1&sig=***"),
    ("https://m.example/cb?code=4%2F0Ab", "4%2F0Ab", "https://m.example/cb?code=***"),
    ("https://m.example/cb#access_token=0Ab", "0Ab", "https://m.example/cb#access_token=***"),
    (
        "https://u.example/SUSE/?0123456789abcdef_-Z=",
        "0123456789abcdef_-Z=",
        "https://u.example/SUSE/?***",
    ),
]
_JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl"
# Programs and servers print these.
IN_MESSAGES = [
    ("'pkcs11:token=t?pin-value=S3CR'ET;\"PIN'", "S3CR", "'pkcs11:token=t?pin-value=***'"),
    ("cast to integer value as 's3'", "s3", "cast to integer value as '***'"),
    ("Failed to parse: 'me:s3' is no port", "s3", "Failed to parse: 'me:***' is no port"),
    ("Unsupported proxy syntax in 'me:s3'", "s3", "Unsupported proxy syntax in 'me:***'"),
    ('invalid port ":s3" after host', "s3", 'invalid port ":***" after host'),
    ("'https://u.example/?0123456789abcdef': 403", "0123", "'https://u.example/?***': 403"),
    ("> Authorization: Basic bWU6cHc=", "bWU6cHc", "> Authorization: Basic ***"),
    ("{'Authorization': 'Bearer abc'}", "abc", "{'Authorization': 'Bearer ***'}"),
    ("proxy-authorization: abc\nnext", "abc", "proxy-authorization: ***\nnext"),
    ("X-Auth-Token: abc", "abc", "X-Auth-Token: ***"),
    ("PRIVATE-TOKEN: abc", "abc", "PRIVATE-TOKEN: ***"),
    ("Set-Cookie: session=abc; Path=/", "abc", "Set-Cookie: ***"),
    ("the server got Bearer abc123def456", "abc123", "the server got Bearer ***"),
    ("the proxy me:hu:sh@[2001:db8::1]:80", "hu:sh", "the proxy me:***@[2001:db8::1]:80"),
    ("'joe:hu/sh@host/x:1' is no image", "hu/sh", "'joe:***@host/x:1' is no image"),
    ("no driver 'joe:hush@host.example'.", "hush", "no driver 'joe:***@host.example'."),
    ("name it ([drivers.joe:hush@host])", "hush", "name it ([drivers.joe:***@host])"),
    ("AWS_SECRET_ACCESS_KEY=hush", "hush", "AWS_SECRET_ACCESS_KEY=***"),
    ("curl --oauth --password='hush' x", "hush", "curl --oauth --password='***' x"),
    ("machine m login me password hush", "hush", "machine m login me password ***"),
    ("LABEL provision.cache=0ab1", "0ab1", "LABEL provision.cache=***"),
    ('{"access_token": "abc", "expires": 3}', "abc", '{"access_token": "***", "expires": 3}'),
    ('"auth": "bWU6cHc="', "bWU6cHc", '"auth": "***"'),
    (f"token {_JWT} expired", _JWT, "token *** expired"),
    ("fatal: ghp_0123456789abcdefABCD is no user", "0123456789", "fatal: *** is no user"),
    ("dckr_pat_0123456789abcdefABCD", "0123456789", "***"),
    ("glpat-0123456789abcdefABCD", "0123456789", "***"),
]
# No secrets, although they look alike.
PUBLIC = [
    "https://host:8080/a@b",
    "provision/lab:1.2@sha256:0012 and lab:1@sha256:0a1b2c3d4e5f",
    "no 'registry.example:5000/lab@latest', and no 'debian:12@sha256:00'",
    "'ssh://root@builder.example/x' and 'https://[2001:db8::1]:8080/a@b/c'",
    "Signed-off-by:me@example.com, mailto:me@example.com",
    "https://m.example/?repo=baseos-9&arch=x86_64",
    "https://m.example/a?keyboard=de&encode=x",
    "The server wants bearer authentication.",
    "token: missing",
]
