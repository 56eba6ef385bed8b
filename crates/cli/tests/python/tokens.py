"""Write the keys of a token issuer to a file, and print valid and invalid tokens."""

import json
import sys
import time

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

own, stranger = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
public = json.loads(RSAAlgorithm.to_jwk(own.public_key())) | {"kid": "k1", "use": "sig", "alg": "RS256"}
with open(sys.argv[1], "w") as file:
    json.dump({"keys": [public]}, file)

claims = {"iss": "https://id.example", "aud": "sapwood", "sub": "ana", "exp": int(time.time()) + 600}


def token(key=own, kid="k1", **changed):
    return jwt.encode(claims | changed, key, algorithm="RS256", headers={"kid": kid})


print(
    json.dumps(
        {
            "good": token(),
            "bad": {
                "another key": token(key=stranger),
                "another audience": token(aud="other"),
                "another issuer": token(iss="https://evil.example"),
                "expired": token(exp=1_000),
                "an unknown key": token(kid="k2"),
                "no signature": jwt.encode(claims, None, algorithm="none"),
            },
        }
    )
)
