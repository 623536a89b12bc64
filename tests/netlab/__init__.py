"""A lab that is like the internet: public hosts, homes behind routers that translate addresses, slow links.

    with Lab() as lab:
        boot = lab.public()
        home = lab.home(nat="symmetric", up_mbit=20)
        home.run([...])

`lab` makes it of network namespaces, `router` is the process in a home's router, `translation` what that one does to
packets. Needs Linux, root and `ip` and `tc` of iproute2, and nothing else.
"""
