"""The run's web page: what anybody may see of a run, served by the bootstrap node.

    source      what the node knows, gathered in one moment: all that touches it
    names       what volunteers call themselves, made safe to show and told apart
    history     the chain of records as rows of figures
    view        all that is shown, as frozen values: the one source of the page, the JSON and the metrics
    seeing      from what the node knows to what strangers may see
    page, chart, api, metrics     the view in HTML, SVG, JSON and Prometheus' text
    server      HTTP for strangers

No address, key or peer id of a volunteer gets past `seeing`: a view holds names and numbers alone.
"""
